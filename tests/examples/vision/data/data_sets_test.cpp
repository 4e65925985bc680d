#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "examples/vision/data/decoder.h"
#include "examples/vision/data/record_sets.h"
#include "tests/examples/vision/data/files.h"
#include "tests/examples/vision/temporary_folder.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using test::fixture;
using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class DataFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder() / name).parent_path());
    std::ofstream(folder() / name, std::ios::binary) << bytes;
  }
  std::string path(const std::string& name) const { return (folder() / name).string(); }
  std::string error() const {
    return message_of([&] { open_data(folder()); });
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
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
  PlanarRecords read() const { return read_records(folder(), files_, layout); }
  std::string read_error() const {
    return message_of([&] { read(); });
  }

  std::vector<RecordFile> files_{{"a.bin", 3}, {"b.bin", 2}};
};

TEST_F(RecordFiles, AreReadInOrder) {
  EXPECT_EQ(read().labels, (std::vector<std::uint8_t>{0, 1, 2, 3, 4}));
  const PlanarImages images("title", {"x"}, layout.size, read());
  EXPECT_EQ(images.title(), "title");
  EXPECT_EQ(images.size(), 5U);
  EXPECT_EQ(images.label(3), 3);
  EXPECT_EQ(images.where(2), path("a.bin") + ", record 2");
  EXPECT_EQ(images.where(3), path("b.bin") + ", record 0");
  std::vector<std::uint8_t> memory;
  const EncodedImage image = images.encoded(3, memory);
  EXPECT_EQ(image.format, ImageFormat::planar_rgb);
  EXPECT_EQ(image.size, layout.size);
  EXPECT_THAT(image.bytes, ElementsAre(100, 101, 102, 103, 104, 105));
}

TEST_F(RecordFiles, EveryLengthButWholeRecordsIsRefused) {
  for (std::size_t left = 1; left < 3 * record; ++left) {
    write("a.bin", bytes(0, 3).substr(0, left));
    if (left % record == 0) {
      EXPECT_EQ(read_error(), "");
      continue;
    }
    EXPECT_THAT(read_error(),
                AllOf(HasSubstr(path("a.bin")), HasSubstr("is truncated"),
                      HasSubstr("found " + std::to_string(left) + " bytes"),
                      HasSubstr("expected 24 bytes (3 records of 8) or fewer whole records")));
  }
  write("a.bin", "");
  EXPECT_THAT(read_error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("is empty"),
                                  HasSubstr("found 0 bytes"), HasSubstr("expected 24 bytes")));
  write("a.bin", bytes(0, 3) + "x");
  EXPECT_THAT(read_error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("is too long"),
                                  HasSubstr("found 25 bytes"), HasSubstr("expected 24 bytes")));
  fs::remove(path("a.bin"));
  EXPECT_THAT(read_error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("is missing"),
                                  HasSubstr("found 0 bytes"), HasSubstr("expected 24 bytes")));
}

TEST_F(RecordFiles, LabelThatIsNoClass) {
  std::string content = bytes(1, 2);
  content[record + 1] = 10;
  write("b.bin", content);
  EXPECT_THAT(read_error(), AllOf(HasSubstr(path("b.bin")), HasSubstr("record 1 (byte 9)"),
                                  HasSubstr("label 10"), HasSubstr("0 to 9")));
  content[record + 1] = 9;
  write("b.bin", content);
  EXPECT_EQ(read_error(), "");
}

TEST_F(RecordFiles, WhatIsNoRegularFileInAFilesPlace) {
  const auto expect_refused = [&] {
    EXPECT_THAT(read_error(), AllOf(HasSubstr(path("a.bin")), HasSubstr("not a regular file")));
    fs::remove(path("a.bin"));
  };
  fs::remove(path("a.bin"));
  fs::create_directory(path("a.bin"));
  expect_refused();
  ASSERT_EQ(mkfifo(path("a.bin").c_str(), 0600), 0);
  expect_refused();
  fs::create_symlink("/dev/zero", path("a.bin"));
  expect_refused();
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

TEST_F(Cifar, TakesFilesWithoutNamesForCifar10AndNamesASubset) {
  write_set(cifar10_records(), 2, 7);
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.kind, DataKind::cifar10);
  EXPECT_EQ(data.id(), "cifar10-subset");
  EXPECT_EQ(data.training->title(), "a subset of CIFAR-10");
  EXPECT_EQ(data.training->size(), 10U);
  EXPECT_EQ(data.validation->size(), 2U);
  EXPECT_EQ(data.training->classes().at(7), "horse");
  EXPECT_EQ(data.training->label(9), 7);
  EXPECT_EQ(data.training->where(9), path("data_batch_5.bin") + ", record 1");
}

TEST_F(Cifar, TheWholeSetIsNoSubset) {
  const RecordSet& set = digits_records();
  write_set(set, 360, 0);
  fs::resize_file(path("data_batch_1.bin"), 1437 * set.layout.bytes());
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "digits");
  EXPECT_THAT(data.training->title(), StartsWith("handwritten digits"));
  keep_first(data, 400);
  EXPECT_EQ(data.training->size(), 400U);
  EXPECT_EQ(data.validation->size(), 360U);
  EXPECT_EQ(data.training->where(3), path("data_batch_1.bin") + ", record 3");
  keep_first(data, 0);
  EXPECT_EQ(data.training->size(), 400U);
}

TEST_F(Cifar, KnowsCifar10ByItsNames) {
  // CIFAR-10's own file ends with an empty line.
  write(class_names_file,
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\r\nhorse\nship\ntruck\n\n");
  write_set(cifar10_records(), 1, 0);
  EXPECT_EQ(open_data(folder()).kind, DataKind::cifar10);
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
  EXPECT_THAT(error(), AllOf(HasSubstr(path(class_names_file)), HasSubstr("9 class names")));
  write(class_names_file, std::string(4097, '\n'));
  EXPECT_THAT(error(), AllOf(HasSubstr(path(class_names_file)), HasSubstr("found 4097 bytes"),
                             HasSubstr("at most 4096")));
}

TEST_F(Cifar, Cifar100HasTwoLabels) {
  write_set(cifar100_records(), 3, 0);
  for (const char* file : {"train.bin", "test.bin"}) {
    std::fstream out(folder() / file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(0).put(19).put(99).put(5);  // superclass, class, the first pixel's red
  }
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "cifar100-subset");
  EXPECT_EQ(data.training->size(), 3U);
  EXPECT_EQ(data.training->label(0), 99);
  EXPECT_EQ(data.training->classes().size(), 100U);
  std::vector<std::uint8_t> memory;
  EXPECT_EQ(data.training->encoded(0, memory).bytes[0], 5);
}

TEST_F(Cifar, NamesWhatIsMissing) {
  EXPECT_THAT(error(), AllOf(HasSubstr(folder().string()), HasSubstr("holds no data set"),
                             HasSubstr("data_batch_1.bin"), HasSubstr("train_X.bin")));
  write(class_names_file, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
  EXPECT_THAT(error(),
              AllOf(HasSubstr(path("data_batch_1.bin")), HasSubstr("is missing: found 0 bytes")));
  EXPECT_THAT(message_of([&] { open_data(folder() / "absent"); }),
              AllOf(HasSubstr(path("absent")), HasSubstr("does not exist")));
}

TEST_F(Cifar, IsFoundInTheFolderOfItsArchive) {
  write_set(cifar10_records(), 1, 1, "cifar-10-batches-bin");
  EXPECT_EQ(open_data(folder()).training->label(0), 1);
  // Files in the folder itself come first.
  write_set(cifar10_records(), 1, 2);
  EXPECT_EQ(open_data(folder()).training->label(0), 2);
}

TEST_F(Cifar, PythonsVersionIsRefusedWithItsConverter) {
  for (const std::string name :
       {"data_batch_1", "cifar-10-batches-py/data_batch_1", "cifar-10-python.tar.gz"}) {
    write(name, "pickle");
    EXPECT_THAT(error(), HasSubstr("examples/cifar10/from_python.py")) << name;
    fs::remove_all(folder() / fs::path(name).begin()->string());
  }
  write("archive", "pickle");
  EXPECT_THAT(message_of([&] { open_data(folder() / "archive"); }), HasSubstr("from_python.py"));
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
    for (std::size_t record = 0; record < count; ++record) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        for (std::size_t column = 0; column < 96; ++column) {
          for (std::size_t row = 0; row < 96; ++row) {
            bytes += static_cast<char>(value(record, channel, row, column));
          }
        }
      }
    }
    return bytes;
  }
};

TEST_F(Stl10, HasPlanesByColumnsAndLabelsFromOne) {
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "stl10-subset");
  EXPECT_EQ(data.training->title(), "a subset of STL-10");
  ASSERT_EQ(data.training->size(), 3U);
  ASSERT_EQ(data.validation->size(), 2U);
  EXPECT_EQ(data.training->label(0), 0);
  EXPECT_EQ(data.training->label(1), 9);
  EXPECT_EQ(data.validation->label(1), 4);
  EXPECT_EQ(data.training->classes().size(), 10U);
  EXPECT_EQ(data.training->where(2), path("train_X.bin") + ", record 2");
  std::vector<std::uint8_t> memory;
  for (const std::size_t record : {2U, 0U}) {
    const EncodedImage encoded = data.training->encoded(record, memory);
    ASSERT_EQ(encoded.format, ImageFormat::planar_rgb);
    ASSERT_EQ(encoded.size, stl10_size);
    ASSERT_EQ(encoded.bytes.size(), image_bytes(stl10_size));
    for (std::size_t i = 0; i < encoded.bytes.size(); ++i) {
      ASSERT_EQ(encoded.bytes[i], value(record, i / 9216, i / 96 % 96, i % 96));
    }
  }
}

TEST_F(Stl10, NamesAFileOfAWrongLength) {
  write("train_X.bin", images(3).substr(1));
  EXPECT_THAT(error(),
              AllOf(HasSubstr(path("train_X.bin")), HasSubstr("is truncated: found 82943 bytes"),
                    HasSubstr("5000 records of 27648")));
  write("train_X.bin", images(2));
  EXPECT_THAT(error(), HasSubstr("train_y.bin holds 3 labels for 2 images"));
  write("train_X.bin", images(3));
  fs::remove(path("test_y.bin"));
  EXPECT_THAT(error(), HasSubstr(path("test_y.bin") + " is missing"));
}

TEST_F(Stl10, NamesALabelThatIsNoClass) {
  for (const char label : {'\0', '\13'}) {
    write("test_y.bin", {2, label});
    EXPECT_THAT(error(),
                AllOf(HasSubstr(path("test_y.bin")), HasSubstr("byte 1"),
                      HasSubstr("label " + std::to_string(int{label})), HasSubstr("1 to 10")));
  }
}

TEST_F(Stl10, AFileThatIsCutLaterGivesABadImage) {
  const DataSets data = open_data(folder());
  fs::resize_file(path("train_X.bin"), image_bytes(stl10_size) + 5);
  std::vector<std::uint8_t> memory;
  data.training->encoded(0, memory);
  const auto read = [&] { data.training->encoded(1, memory); };
  EXPECT_THROW(read(), BadImage);
  EXPECT_THAT(message_of(read),
              AllOf(StartsWith(data.training->where(1) + ": "),
                    HasSubstr("read 5 bytes from byte 27648 on, expected 27648")));
}

class ImageFolders : public DataFolder {
 protected:
  // A copy of a fixture.
  void put(const std::string& image, const fs::path& place) const {
    fs::create_directories((folder() / place).parent_path());
    fs::copy_file(fixture("images/" + image), folder() / place);
  }
  void put_everywhere(const std::string& image, const fs::path& place) const {
    put(image, "train" / place);
    put(image, "val" / place);
  }
};

// By folder, then by the bytes of the name: capitals come first.
TEST_F(ImageFolders, HaveClassesAndImagesInTorchvisionsOrder) {
  put_everywhere("grey.jpg", "b class/2.jpg");
  put_everywhere("rgb.png", "b class/10.PNG");
  put_everywhere("cmyk.jpg", "Ära/bänder 1.JPEG");
  put_everywhere("rgb_420.jpg", "A/z.jpg");
  put_everywhere("rgb_444.jpg", "A/z/a.jpeg");
  put_everywhere("grey.jpg", "A/Z.jpg");
  put("grey.png", "train/A/one more.png");
  write("train/A/notes.txt", "no image");
  write("train/README", "no class");
  const DataSets data = open_data(folder());
  EXPECT_EQ(data.id(), "image-folder");
  EXPECT_EQ(data.training->title(), "the images in " + folder().string());
  EXPECT_THAT(data.training->classes(), ElementsAre("A", "b class", "Ära"));
  ASSERT_EQ(data.training->size(), 7U);
  ASSERT_EQ(data.validation->size(), 6U);
  const std::vector<std::string> names{"A/Z.jpg",          "A/one more.png", "A/z.jpg",
                                       "A/z/a.jpeg",       "b class/10.PNG", "b class/2.jpg",
                                       "Ära/bänder 1.JPEG"};
  const std::vector<int> labels{0, 0, 0, 0, 1, 1, 2};
  std::vector<std::uint8_t> memory;
  Decoder decoder;
  Image image;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(data.training->where(i), path("train/" + names[i]));
    EXPECT_EQ(data.training->label(i), labels[i]);
    const EncodedImage encoded = data.training->encoded(i, memory);
    EXPECT_EQ(decoder.open(encoded, data.training->where(i)), (ImageSize{29, 21}));
    decoder.decode(1, image);
  }
}

TEST_F(ImageFolders, TheFirstBytesSayWhatAFileIs) {
  put_everywhere("rgb.png", "n01440764/ILSVRC2012_val_00000001.JPEG");
  put_everywhere("grey.jpg", "n01440764/ILSVRC2012_val_00000002.JPEG");
  const DataSets data = open_data(folder());
  std::vector<std::uint8_t> memory;
  EXPECT_EQ(data.training->encoded(0, memory).format, ImageFormat::png);
  EXPECT_EQ(data.training->encoded(1, memory).format, ImageFormat::jpeg);
}

TEST_F(ImageFolders, AnImagesNameThatIsNoFileIsABadImage) {
  put_everywhere("grey.jpg", "a/1.jpg");
  fs::create_symlink("nowhere", path("train/a/2.jpg"));
  fs::create_symlink("/dev/zero", path("train/a/3.png"));
  ASSERT_EQ(mkfifo(path("train/a/4.jpg").c_str(), 0600), 0);
  fs::create_directory(path("train/a/5.jpeg"));
  const DataSets data = open_data(folder());
  ASSERT_EQ(data.training->size(), 4U);
  std::vector<std::uint8_t> memory;
  data.training->encoded(0, memory);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_THROW(data.training->encoded(i, memory), BadImage) << i;
  }
}

TEST_F(ImageFolders, NameWhatIsMissing) {
  fs::create_directory(path("train"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("train")), HasSubstr("holds no folder")));
  put("grey.jpg", "train/a/1.jpg");
  EXPECT_THAT(error(), AllOf(HasSubstr(path("val")), HasSubstr("does not exist")));
  put("grey.jpg", "val/b/1.jpg");
  EXPECT_THAT(error(), AllOf(HasSubstr(folder().string()), HasSubstr("class a is in train alone"),
                             HasSubstr("2 are")));
  put("grey.jpg", "train/b/1.jpg");
  put("grey.jpg", "val/a/1.jpg");
  put("grey.jpg", "val/c/1.jpg");
  EXPECT_THAT(error(), HasSubstr("class c is in val alone"));
  fs::create_directory(path("train/leer & über"));
  EXPECT_THAT(error(), AllOf(HasSubstr(path("train/leer & über")), HasSubstr("holds no image"),
                             HasSubstr(".png")));
  fs::create_symlink("nowhere", path("train/d"));
  EXPECT_THAT(error(), HasSubstr(path("train/d") + " is a link to nowhere"));
}

TEST_F(ImageFolders, AFileThatVanishesOrIsNoneIsABadImage) {
  put_everywhere("grey.jpg", "a/1.jpg");
  put_everywhere("grey.jpg", "a/2.jpg");
  const DataSets data = open_data(folder());
  const std::string file = path("train/a/2.jpg");
  std::vector<std::uint8_t> memory;
  const auto read = [&] { data.training->encoded(1, memory); };
  fs::remove(file);
  EXPECT_THROW(read(), BadImage);
  EXPECT_THAT(message_of(read),
              AllOf(StartsWith(file + ": cannot be opened"), HasSubstr("No such file")));
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_THAT(message_of(read), AllOf(StartsWith(file), HasSubstr("not a regular file")));
  fs::remove(file);
  std::ofstream(file) << "";
  read();
  Decoder decoder;
  EXPECT_THAT(message_of([&] {
                decoder.open({ImageFormat::jpeg, memory, {}}, file);
              }),
              StartsWith(file + ": "));
  fs::resize_file(file, (std::uint64_t{256} << 20U) + 1);  // sparse
  EXPECT_THAT(message_of(read), AllOf(StartsWith(file), HasSubstr("too long")));
}

}  // namespace
}  // namespace vision
