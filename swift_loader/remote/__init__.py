"""Workers on other machines: endpoints (`swift-loader serve`) and Ray.

A script names them by ``SwiftLoader(remote_workers=["tcp://node01:6543"], remote_key="…")`` or
``SwiftLoader(remote_workers=RayWorkers(16))``. Each is one more `Link` to the pipeline: the same
numbers go down, the same batches come up.
"""

from swift_loader.remote.ray import RayWorkers

__all__ = ["RayWorkers"]
