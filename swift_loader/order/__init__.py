"""What a consumer gets, and when: by the plan, by a sampler, or by the shards of a stream."""
