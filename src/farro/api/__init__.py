"""The Python API behind `farro.open` and `@farro.task`. The public names are exported by `farro` itself."""
