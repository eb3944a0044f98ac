"""What a consumer gets, and when: by the plan, by the user's sampler, or by the shards of a stream.

`order`
    What the rest of the loader asks of every kind. An order is a value.
`part`
    Batch numbers, the part of an epoch that a consumer takes, and how much of it the loop has had.
`planned`, `resume`
    By the plan; and how it goes on from a state, also with other consumers.
`sampled`, `sampling`, `ahead`, `sampler_epochs`, `keys`
    By a sampler; how that is drawn, and drawn again; its epochs; how its keys travel.
`stream`
    By shards, whose end nobody knows before.
`told`
    Around any of these: what a dataset is told from some epoch on.
`state`
    The one place that writes states, and reads and checks them.
"""
