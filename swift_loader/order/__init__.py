"""What a consumer gets, and when: by the plan, by the user's sampler, or by the shards of a stream."""
