def _prepare():
    raise RuntimeError("the driver library\nis too old")


_prepare()
