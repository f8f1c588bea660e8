"""An HTTP server that knows how long each answer will be: the OpenAI API over slots."""
