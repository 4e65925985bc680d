// Folders, each with the data sets that are found in it or why there is none: data_sets.txt.
#include <gmock/gmock.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "examples/vision/data/record_sets.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;

/// An image's format and first bytes.
std::string content(const Dataset& images, std::size_t index) {
  std::vector<std::uint8_t> memory;
  try {
    const EncodedImage image = images.encoded(index, memory);
    return fmt::format(
        "format {} of {} x {}, {} bytes, {}...", static_cast<int>(image.format), image.size.width,
        image.size.height, image.bytes.size(),
        fmt::join(image.bytes.first(std::min<std::size_t>(image.bytes.size(), 6)), " "));
  } catch (const BadImage& error) {
    return std::string("bad: ") + error.what();
  }
}

std::string description(const Dataset& images) {
  std::string text =
      fmt::format("  {}: {} images of {} classes, {} to {}\n", images.title(), images.size(),
                  images.classes().size(), images.classes().front(), images.classes().back());
  for (std::size_t i = 0; i < std::min<std::size_t>(images.size(), 10); ++i) {
    text += fmt::format("  {}, {}: {}\n", images.label(i), images.where(i), content(images, i));
  }
  return text;
}

class DataFolder : public testing::Test {
 protected:
  void TearDown() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    hora::internal::test::expect_golden("examples/vision/data/data_sets.txt", test, text_);
  }

  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder() / name).parent_path());
    std::ofstream(folder() / name, std::ios::binary) << bytes;
  }
  std::string path(const std::string& name) const { return (folder() / name).string(); }
  const fs::path& folder() const { return folder_.path(); }

  /// To the test's text, where the folder is FOLDER.
  void note(const std::string& text) {
    text_ += test::replaced(text, folder().string(), "FOLDER") + "\n";
  }
  void note(const DataSets& data) {
    note(data.id() + "\n" + description(*data.training) + description(*data.validation));
  }
  /// Notes what is found here, or the error.
  void open(const std::string& within = "") {
    try {
      note(open_data(folder() / within));
    } catch (const std::runtime_error& error) {
      note(error.what());
    }
  }

 private:
  test::TemporaryFolder folder_;
  std::string text_;
};

class Cifar : public DataFolder {
 protected:
  // Files of `records` records each with this label; the pixels are the record's number.
  void write_set(const RecordSet& set, std::size_t records, char label,
                 const std::string& within = ".") const {
    char number = 0;
    for (const auto* part : {&set.training, &set.validation}) {
      for (const RecordFile& file : *part) {
        std::string bytes;
        for (std::size_t i = 0; i < records; ++i) {
          bytes.append(set.layout.labels, label).append(image_bytes(set.layout.size), number++);
        }
        write(within + "/" + file.name, bytes);
      }
    }
  }
  void write_digits(std::size_t records, char label) const {
    write_set(digits_records(), records, label);
    write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  }
};

TEST_F(Cifar, HasWholeRecordsInRegularFilesAndLabelsOfClasses) {
  write_digits(1, 9);
  constexpr std::size_t record = cifar10_layout.bytes();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, record - 1, record + 1, 2 * record, 1437 * record + 1}) {
    fs::resize_file(path("data_batch_1.bin"), size);
    open();
  }
  write("data_batch_1.bin", std::string(record, 10));
  open();
  fs::remove(path("data_batch_1.bin"));
  open();
  ASSERT_EQ(mkfifo(path("data_batch_1.bin").c_str(), 0600), 0);
  open();
}

TEST_F(Cifar, TheWholeSetIsNoSubset) {
  write_digits(360, 0);
  fs::resize_file(path("data_batch_1.bin"), 1437 * cifar10_layout.bytes());
  DataSets data = open_data(folder());
  note(data);
  for (const std::size_t limit : {400, 0}) {
    keep_first(data, limit);
    note(data);
  }
}

TEST_F(Cifar, IsKnownByItsNames) {
  write_set(cifar10_records(), 2, 7);
  open();
  // CIFAR-10's own file ends with an empty line.
  write(class_names_file,
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\r\nhorse\nship\ntruck\n\n");
  open();
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
  open();
  write(class_names_file, std::string(4097, '\n'));
  open();
}

TEST_F(Cifar, Cifar100HasTwoLabels) {
  write_set(cifar100_records(), 3, 0);
  for (const char* file : {"train.bin", "test.bin"}) {
    std::fstream out(folder() / file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(0).put(19).put(99).put(5);  // superclass, class, the first pixel's red
  }
  open();
}

TEST_F(Cifar, InTheFolderItselfComesBeforeThatOfItsArchive) {
  open("absent");
  open();
  write_set(cifar10_records(), 1, 1, "cifar-10-batches-bin");
  open();
  write_set(cifar10_records(), 1, 2);
  open();
}

TEST_F(Cifar, PythonsVersionIsRefusedWithItsConverter) {
  for (const std::string name :
       {"data_batch_1", "cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"}) {
    write(name, "pickle");
    open();
    fs::remove_all(folder() / fs::path(name).begin()->string());
  }
  write("archive", "pickle");
  open("archive");
}

class Stl10 : public DataFolder {
 protected:
  Stl10() {
    write("train_X.bin", images(3));
    write("train_y.bin", {1, 10, 3});
    write("test_X.bin", images(2));
    write("test_y.bin", {2, 5});
  }

  // As the file has it: planes, by columns.
  static std::string images(std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count * image_bytes(stl10_size); ++i) {
      bytes +=
          static_cast<char>(i / 27648 * 50 + i / 9216 % 3 * 100 + i % 96 * 2 + i / 96 % 96 * 3);
    }
    return bytes;
  }
};

TEST_F(Stl10, HasPlanesByColumnsAndLabelsFromOneAndABadImageWhereTheFileIsCutLater) {
  const DataSets data = open_data(folder());
  note(data);
  fs::resize_file(path("train_X.bin"), image_bytes(stl10_size) + 5);
  note(data);
}

TEST_F(Stl10, NamesAFileOfAWrongLengthAndALabelThatIsNoClass) {
  write("train_X.bin", images(3).substr(1));
  open();
  write("train_X.bin", images(2));
  open();
  write("train_X.bin", images(3));
  for (const char label : {'\0', '\13'}) {
    write("test_y.bin", {2, label});
    open();
  }
  fs::remove(path("test_y.bin"));
  open();
}

class ImageFolders : public DataFolder {
 protected:
  // A copy of a fixture.
  void put(const std::string& image, const fs::path& place) const {
    fs::create_directories((folder() / place).parent_path());
    fs::copy_file(test::fixture("images/" + image), folder() / place);
  }
  void put_everywhere(const std::string& image, const fs::path& place) const {
    put(image, "train" / place);
    put(image, "val" / place);
  }
};

// By folder, then by the bytes of the name: capitals come first. The first bytes say what a file
// is.
TEST_F(ImageFolders, HaveClassesAndImagesInTorchvisionsOrder) {
  put_everywhere("grey.jpg", "b class/2.jpg");
  put_everywhere("rgb.png", "b class/10.PNG");
  put_everywhere("cmyk.jpg", "Ära/bänder 1.JPEG");
  put_everywhere("rgb_420.jpg", "A/z.jpg");
  put_everywhere("rgb_444.jpg", "A/z/a.jpeg");
  put_everywhere("rgb.png", "A/Z.jpg");
  put("grey.png", "train/A/one more.png");
  write("train/A/notes.txt", "no image");
  write("train/README", "no class");
  open();
}

TEST_F(ImageFolders, NameWhatIsMissing) {
  fs::create_directory(path("train"));
  open();
  for (const char* const next : {"train/a/1.jpg", "val/b/1.jpg", "train/b/1.jpg"}) {
    put("grey.jpg", next);
    open();
  }
  put("grey.jpg", "val/a/1.jpg");
  put("grey.jpg", "val/c/1.jpg");
  open();
  fs::create_directory(path("train/leer & über"));
  open();
  fs::create_symlink("nowhere", path("train/d"));
  open();
}

TEST_F(ImageFolders, WhatIsNoFileOrVanishesIsABadImage) {
  put_everywhere("grey.jpg", "a/1.jpg");
  put("grey.jpg", "train/a/2.jpg");
  fs::create_symlink("nowhere", path("train/a/3.jpg"));
  fs::create_symlink("/dev/zero", path("train/a/4.png"));
  ASSERT_EQ(mkfifo(path("train/a/5.jpg").c_str(), 0600), 0);
  fs::create_directory(path("train/a/6.jpeg"));
  put("grey.jpg", "train/a/7.jpg");
  const DataSets data = open_data(folder());
  fs::remove(path("train/a/2.jpg"));
  fs::resize_file(path("train/a/7.jpg"), (std::uint64_t{256} << 20U) + 1);  // sparse
  note(data);
}

}  // namespace
}  // namespace vision
