"""The server on a Ray cluster: replicas of the same application behind one address."""
