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

// Two files of 3 and 2 records of 2 x 1 pixels, two labels each, of which the first is not used.
class RecordFiles : public DataFolder {
 protected:
  static constexpr RecordLayout layout{{2, 1}, 2, 10};
  static constexpr std::size_t record = layout.bytes();  // 8

  RecordFiles() {
    write("a.bin", bytes(0, 3));
    write("b.bin", bytes(1, 2));
  }

  static std::string bytes(int file, int records) {
    std::string text;
    for (int r = 0; r < records; ++r) {
      text += '\x63';
      text += static_cast<char>(file * 3 + r);
      for (int pixel = 0; pixel < 6; ++pixel) {
        text += static_cast<char>(file * 100 + r * 10 + pixel);
      }
    }
    return text;
  }
  void read() {
    const std::vector<RecordFile> files{{"a.bin", 3}, {"b.bin", 2}};
    try {
      const PlanarImages images("title", {"x"}, layout.size, read_records(folder(), files, layout));
      note(description(images));
    } catch (const std::runtime_error& error) {
      note(error.what());
    }
  }
};

TEST_F(RecordFiles, AreReadInOrderAndAnyLengthButWholeRecordsIsRefused) {
  for (std::size_t left = 0; left <= 3 * record + 1; ++left) {
    write("a.bin", (bytes(0, 3) + "x").substr(0, left));
    read();
  }
  fs::remove(path("a.bin"));
  read();
}

TEST_F(RecordFiles, HaveLabelsOfClasses) {
  for (const char label : {'\11', '\12'}) {
    std::string content = bytes(1, 2);
    content[record + 1] = label;
    write("b.bin", content);
    read();
  }
}

TEST_F(RecordFiles, AreRegular) {
  fs::remove(path("a.bin"));
  fs::create_directory(path("a.bin"));
  read();
  fs::remove(path("a.bin"));
  ASSERT_EQ(mkfifo(path("a.bin").c_str(), 0600), 0);
  read();
  fs::remove(path("a.bin"));
  fs::create_symlink("/dev/zero", path("a.bin"));
  read();
}

class Cifar : public DataFolder {
 protected:
  // Files of `records` records each, in which every byte is `value`.
  void write_set(const RecordSet& set, std::size_t records, char value,
                 const std::string& within = ".") const {
    for (const auto* part : {&set.training, &set.validation}) {
      for (const RecordFile& file : *part) {
        write(within + "/" + file.name, std::string(records * set.layout.bytes(), value));
      }
    }
  }
};

TEST_F(Cifar, FilesWithoutNamesAreCifar10sAndASubset) {
  write_set(cifar10_records(), 2, 7);
  open();
}

TEST_F(Cifar, TheWholeSetIsNoSubset) {
  const RecordSet& set = digits_records();
  write_set(set, 360, 0);
  fs::resize_file(path("data_batch_1.bin"), 1437 * set.layout.bytes());
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  DataSets data = open_data(folder());
  note(data);
  for (const std::size_t limit : {400, 0}) {
    keep_first(data, limit);
    note(data);
  }
}

TEST_F(Cifar, IsKnownByItsNames) {
  // CIFAR-10's own file ends with an empty line.
  write(class_names_file,
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\r\nhorse\nship\ntruck\n\n");
  write_set(cifar10_records(), 1, 0);
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

TEST_F(Cifar, NamesWhatIsMissing) {
  open();
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  open();
  open("absent");
}

TEST_F(Cifar, InTheFolderItselfComesBeforeThatOfItsArchive) {
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

// Pixel (row, column) and channel of an image of STL-10.
std::uint8_t value(std::size_t record, std::size_t channel, std::size_t row, std::size_t column) {
  return static_cast<std::uint8_t>(record * 50 + channel * 100 + row * 2 + column * 3);
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
      bytes += static_cast<char>(value(i / 27648, i / 9216 % 3, i % 96, i / 96 % 96));
    }
    return bytes;
  }
};

TEST_F(Stl10, HasPlanesByColumnsAndLabelsFromOne) {
  const DataSets data = open_data(folder());
  note(data);
  std::vector<std::uint8_t> memory;
  for (const std::size_t record : {2U, 0U}) {
    const EncodedImage encoded = data.training->encoded(record, memory);
    for (std::size_t i = 0; i < encoded.bytes.size(); ++i) {
      ASSERT_EQ(encoded.bytes[i], value(record, i / 9216, i / 96 % 96, i % 96));
    }
  }
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

TEST_F(Stl10, AFileThatIsCutLaterGivesABadImage) {
  const DataSets data = open_data(folder());
  fs::resize_file(path("train_X.bin"), image_bytes(stl10_size) + 5);
  note(data);
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
