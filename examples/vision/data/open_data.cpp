#include "examples/vision/data/open_data.h"

#include <array>
#include <string>

#include "examples/vision/data/cifar.h"
#include "examples/vision/data/image_folder.h"
#include "examples/vision/data/stl10.h"

namespace vision {

namespace fs = std::filesystem;

namespace {

DataSets refuse_python_version(const fs::path& path) {
  throw std::runtime_error(
      path.string() + " is no data set in a binary version; if it is CIFAR-10's Python version, " +
      "convert it: examples/cifar10/from_python.py " + path.string() + " OUTPUT");
}

struct Sign {
  const char* name;    // where this lies in the folder
  const char* within;  // there the data set is; "" for the folder itself
  DataSets (*open)(const fs::path& folder);
};

// The first that is there decides. With a file of class names alone the data files are missing,
// which then is the error.
constexpr std::array signs{
    Sign{"data_batch_1.bin", "", open_cifar},
    Sign{"train.bin", "", open_cifar},
    Sign{class_names_file, "", open_cifar},
    Sign{cifar100_class_names_file, "", open_cifar},
    Sign{"data_batch_1", "", refuse_python_version},
    Sign{"train_X.bin", "", open_stl10},
    Sign{"cifar-10-batches-bin", "cifar-10-batches-bin", open_cifar},
    Sign{"cifar-100-binary", "cifar-100-binary", open_cifar},
    Sign{"cifar-10-batches-py", "cifar-10-batches-py", refuse_python_version},
    Sign{"cifar-10-python.tar.gz", "cifar-10-python.tar.gz", refuse_python_version},
    Sign{"stl10_binary", "stl10_binary", open_stl10},
    Sign{"train", "", open_image_folders},
};

}  // namespace

DataSets open_data(const fs::path& path) {
  if (fs::exists(path) && !fs::is_directory(path)) {
    return refuse_python_version(path);
  }
  if (!fs::exists(path)) {
    throw NoData("Data folder " + path.string() + " does not exist");
  }
  std::string looked_for;
  for (const Sign& sign : signs) {
    if (fs::exists(path / sign.name)) {
      return sign.open(sign.within[0] == '\0' ? path : path / sign.within);
    }
    looked_for += std::string(looked_for.empty() ? "" : ", ") + sign.name;
  }
  throw NoData("Data folder " + path.string() + " holds no data set; expected one of " +
               looked_for);
}

}  // namespace vision
