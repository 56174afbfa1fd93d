"""Makes a wheel of one platform, for any Python 3, with the library that PAGEDLLM_LIBRARY names."""

import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


def library():
    path = os.environ.get("PAGEDLLM_LIBRARY")
    if not path:
        raise SystemExit("PAGEDLLM_LIBRARY must name the libpagedllm.so that goes into the wheel")
    return Path(path)


def manylinux(tag, binary):
    """The tag for the oldest glibc that has every symbol which the library asks for."""
    minors = re.findall(rb"(?<=\0)GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", binary)
    if not minors or not tag.startswith("linux_"):
        return tag
    return f"manylinux_2_{max(int(minor) for minor in minors)}_{tag[len('linux_'):]}"


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


class WithLibrary(build_py):
    def run(self):
        super().run()
        shutil.copy2(library(), Path(self.build_lib) / "pagedllm" / "libpagedllm.so")


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", manylinux(super().get_tag()[2], library().read_bytes())


setup(
    distclass=BinaryDistribution, cmdclass={"bdist_wheel": PlatformWheel, "build_py": WithLibrary}
)
