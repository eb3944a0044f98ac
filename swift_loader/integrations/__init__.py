"""What a framework asks for beyond a loader that is iterated. Each module is imported by itself."""
