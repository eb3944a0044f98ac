"""``swift-loader report``: reads benchmark files, writes text for a terminal or a page."""
