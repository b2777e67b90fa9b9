"""Pure rules of a job: ids, states, transitions, outcomes, retries, places. Clock and randomness are passed in."""
