"""What a training script holds: `SwiftLoader`, its options and its epochs."""
