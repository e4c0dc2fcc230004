"""AWARE's endpoint: replicas and limits of an application's pods."""
