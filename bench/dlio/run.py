"""Runs DLIO without TensorFlow and without its tracer, which it imports even where it uses PyTorch alone. Arguments: DLIO's own."""

import sys
import types


class Untraced:
    """What DLIO imports of its tracer: decorators that give functions back as they are."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def log(self, function):
        return function

    log_init = log_static = log

    def iter(self, items, *_, **__):
        return iter(items)

    def update(self, *_, **__):
        pass


def module(name, **contents):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(contents)


module("dftracer")
module("dftracer.logger", dftracer=None, dft_fn=Untraced, DFTRACER_ENABLE=False)
# Nobody asks for TensorFlow's profiler.
module("dlio_benchmark.profiler.tf_profiler", TFProfiler=None)

if __name__ == "__main__":
    from dlio_benchmark.main import main

    main()
