/// State of a training that outlives its process without being copied: the tensors' own memory is
/// a file in shared memory, which is there when the process has been killed.
///
/// FOLDER/live has a header, room for two copies of what may change between two commits, which are
/// written in turn, and the tensors' memory. FOLDER/live.json says where each tensor lies. A copy
/// has the values of tensors that stay where they are, and a safetensors file of others.
#pragma once

#include "frameworks/torch/checkpoint/named_tensors.h"
#include "frameworks/torch/checkpoint/store.h"

namespace hora::internal {

/// One of a process's commits.
struct LiveCommit {
  std::uint64_t count = 0;  ///< which of the generation's, from 1: the same on every rank
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t time = 0;  ///< as Manifest has it
};

/// Describes the training whose commits a process keeps.
struct LiveTraining {
  Manifest manifest;  ///< `shard`: the rank
  std::vector<std::string> parts;
};

class LiveMapping;

/// Removes the folder and throws Error(invalid_argument) where its file system has less than
/// `reserve` bytes left.
void keep_reserve(const std::string& folder, std::uint64_t reserve);

/// Thread rule: one thread at a time.
class LiveMemory {
 public:
  /// Moves the memory of the storages of `tensors`, dense ones on the CPU, into new files, with
  /// room for copies of `values` and images of `room` bytes; pointers into it are not valid any
  /// more. Tensors keep it when this is destroyed. Throws Error(invalid_argument), and moves none;
  /// also what keep_reserve() does.
  LiveMemory(const std::string& folder, const LiveTraining& training, const NamedTensors& tensors,
             const NamedTensors& values, std::size_t room, std::uint64_t reserve);
  LiveMemory(const LiveMemory&) = delete;
  LiveMemory& operator=(const LiveMemory&) = delete;

  /// The tensors are as the commit says, with the values and this image beside them, until
  /// change_begins(). False, and nothing is kept, where the image has no room.
  bool keep(const LiveCommit& commit, std::span<const std::byte> image);
  /// Returns the name of a tensor that has changed since the last keep(), and should not have;
  /// empty: none.
  std::string change_begins();

 private:
  struct Tensor {
    std::string name;
    at::Tensor tensor;
    std::int64_t version = 0;  ///< autograd's counter of changes
  };
  std::shared_ptr<LiveMapping> mapping_;
  std::vector<Tensor> tensors_;
  std::vector<std::span<const std::byte>> values_;
  std::size_t values_bytes_ = 0;
  std::size_t room_;  ///< of a copy
};

/// Contents of the files of a process that has ended.
struct LiveContents {
  struct Copy {
    LiveCommit commit;
    bool has_tensors = false;               ///< they are as the commit says
    NamedTensors entries = NamedTensors();  ///< values, and those of the image
  };
  LiveTraining training;
  NamedTensors tensors = NamedTensors();
  std::vector<Copy> copies;  ///< the older one first
};

/// Removes the folder's files, whose contents it returns to one caller alone. Nothing where there
/// are none, or they do not fit together.
std::optional<LiveContents> take_live(const std::string& folder);

}  // namespace hora::internal
