"""What a training script holds: `SwiftLoader`, its options and its epochs.

``loader``       `SwiftLoader`: its life, its epochs, its state
``options``      every option, defined once; ``checks``: what their values must be
``given``        which arguments a caller has given
``from_torch``   torch's `DataLoader` in our words
``orders``       which order the options ask for
``target``       where batches go
``engine``       what a started loader holds open
``epoch``        the iterator of one epoch
``handing_on``   what `swift_loader.sharing` asks of a loader
"""
