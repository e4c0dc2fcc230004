"""Several gateways and workers that act as one service: control process, ownership of tenants."""
