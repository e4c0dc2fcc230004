"""Pod scaling in evaluation; no learned policy decides there yet."""
