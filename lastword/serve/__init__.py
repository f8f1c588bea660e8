"""An HTTP server with OpenAI's API, which schedules requests by their predicted lengths."""
