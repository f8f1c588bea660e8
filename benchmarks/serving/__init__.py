"""The server under load: the same requests, engine and rules, with and without what a probe says."""
