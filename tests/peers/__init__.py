"""Other people's clients, unmodified, against an engine and through the gateway: what they report must not differ."""
