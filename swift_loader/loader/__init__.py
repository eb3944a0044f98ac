"""What a training script holds: `SwiftLoader`, its options and its epochs.

``loader``       `SwiftLoader`: its life, its epochs, its state
``options``      every option, defined once; ``checks``: what their values must be
``signature``    what a loader takes and gives, for type checkers
``construction`` how a loader is made of a data set or a `DataLoader`, and as a copy
``given``        which arguments a caller has given; ``names``: torch's names of the options
``from_torch``   torch's `DataLoader` in our words
``orders``       which order the options ask for
``target``       where batches go
``in_process``   batches without workers; ``torch_attributes``: what libraries read
``engine``       what a started loader holds open
``epoch``        the iterator of one epoch
``handing_on``   what `swift_loader.sharing` asks of a loader
"""
