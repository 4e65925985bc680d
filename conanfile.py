"""Conan 2: `conan create .` builds hora with the system's MPI and LibTorch (cmake/debian-packages.txt names what is
needed), and find_package(hora COMPONENTS torch) finds it. packaging/test.sh tries it."""
import re
from pathlib import Path

from conan import ConanFile
from conan.tools.cmake import CMake, cmake_layout


class Hora(ConanFile):
    name = "hora"
    description = "Data-parallel training for C++"
    license = "not yet chosen"
    topics = ("mpi", "deep-learning", "libtorch")
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "torch": [True, False]}
    default_options = {"shared": False, "torch": True}
    generators = "CMakeToolchain"
    exports_sources = "CMakeLists.txt", "NEWS.md", "README.md", "cmake/*", "core/*", "docs/*", "frameworks/*", "ops/*", "packaging/*"

    def set_version(self):
        text = Path(self.recipe_folder, "CMakeLists.txt").read_text()
        self.version = re.search(r"project\(hora VERSION ([0-9.]+)", text).group(1)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(variables={"HORA_TORCH": self.options.torch, "HORA_TESTS": False,
                                   "HORA_BENCH": False, "HORA_EXAMPLES": False})
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # hora's own package files, which look for MPI and LibTorch.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/hora"]
        self.cpp_info.bindirs = ["bin"]
