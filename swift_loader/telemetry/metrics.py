"""What a loader measures: `Meter` sums the times of delivered batches, `snapshot` reads them.

Signatures that the pipeline calls:

```python

```
