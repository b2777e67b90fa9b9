"""An agent of a user's own: it asks its model once, with what farro tells it, and prints the answer."""

import json
import os
import sys
import urllib.request

body = {
    "model": "lab",
    "stream": True,
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": sys.stdin.read()}],
}
request = urllib.request.Request(
    f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages",
    json.dumps(body).encode(),
    {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    events = [json.loads(line[6:]) for line in response if line.startswith(b"data: ")]
print("".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"))
