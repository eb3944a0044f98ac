"""From samples to bytes and back: collating, encoding, seeding, and carrying the user's objects."""
