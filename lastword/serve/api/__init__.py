"""The HTTP application: the OpenAI API and our own routes, over an engine."""
