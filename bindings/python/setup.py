"""What pyproject.toml cannot say: the version comes from ftmem.h, and the extension from ffi_build.py."""
import os
import sys
import sysconfig

from setuptools import setup

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import ffi_build  # noqa: E402

abi3 = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
setup(
    version=ffi_build.version(),
    cffi_modules=["ffi_build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp39"}} if abi3 else {},
)
