"""spack repo add packaging/spack; spack install hora. Untried: no Spack was at hand."""
from spack.package import *


class Hora(CMakePackage):
    """Data-parallel training for C++."""

    git = "file:///path/to/hora"  # no public address yet
    maintainers = []
    # No licence has been chosen yet.

    version("main", branch="main")

    variant("shared", default=True, description="Build shared libraries")
    variant("torch", default=True, description="Build hora::torch")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("cli11", type="build")
    depends_on("flatbuffers", type="build")
    depends_on("nlohmann-json", type="build")
    depends_on("tl-expected", type="build")
    depends_on("hwloc")
    depends_on("libsodium")
    depends_on("mpi")
    depends_on("spdlog")
    depends_on("yaml-cpp")
    depends_on("py-torch@1.13:", when="+torch")
    depends_on("xxhash", when="+torch")

    def cmake_args(self):
        arguments = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("HORA_TORCH", "torch"),
            self.define("HORA_TESTS", False),
            self.define("HORA_BENCH", False),
            self.define("HORA_EXAMPLES", False),
        ]
        if self.spec.satisfies("+torch"):
            arguments.append(self.define("CMAKE_PREFIX_PATH", self.spec["py-torch"].package.cmake_prefix_paths))
        return arguments
