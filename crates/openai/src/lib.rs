//! OpenAI's protocol without a network: bodies to requests, events to chunks.
