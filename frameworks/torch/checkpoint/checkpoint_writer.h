/// Saves: copies, exchanges what must be, and writes in the background.
#pragma once

#include <hora/context.h>
#include <hora/torch/checkpoint.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "frameworks/torch/checkpoint/checkpoint_folder.h"
#include "frameworks/torch/checkpoint/checkpoint_parts.h"
#include "frameworks/torch/checkpoint/manifest.h"
#include "frameworks/torch/checkpoint/tensor_image.h"

namespace hora::internal {

/// One task at a time on a thread of its own. The destructor waits. Thread rule: one thread at a
/// time.
class BackgroundTask {
 public:
  /// Not before wait() has returned.
  void start(std::function<void()> task) {
    pending_ = std::async(std::launch::async, std::move(task));
  }

  /// Waits for the task; what it has thrown, as text. Empty: nothing, or no task was started.
  std::string wait() {
    if (!pending_.valid()) return "";
    try {
      pending_.get();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

 private:
  std::future<void> pending_;
};

inline constexpr const char* kWeightsFile = "weights.safetensors";
inline constexpr const char* kStateFile = "state.safetensors";
/// In the metadata of kStateFile: the names of all parts, as a list in JSON.
inline constexpr const char* kPartsKey = "parts";

/// The folder of a rank's shards.
std::string shard_folder(const std::string& folder, int rank);

/// Thread rule: one thread at a time. It stays where it is; the context outlives it.
class CheckpointWriter {
 public:
  CheckpointWriter(const Context& context, const CheckpointOptions& options);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits; logs a warning where the last save has failed and no call has said so.
  ~CheckpointWriter();

  /// As Checkpoint's; position and best are rank 0's. `module` may be null. Collective.
  void save(const CheckpointPosition& position, bool best, std::span<const CheckpointPart> parts,
            const torch::nn::Module* module);
  void wait();
  /// The folders hold this complete save, which stays until the next one is complete; `latest`:
  /// time of the latest of all saves in them.
  void note_loaded(const std::string& save, std::int64_t latest) {
    complete_ = save;
    latest_ = std::max(latest_, latest);
  }

 private:
  struct Header;

  /// The images are not in use any more.
  void finish();
  void collect(std::span<const CheckpointPart> parts, const torch::nn::Module* module);
  /// Throws the same Error on every rank where `problem`, or the save before, has failed on any.
  Header exchange(Header own, const std::string& problem, std::span<const CheckpointPart> parts);
  void fill_state(std::vector<Bytes> of_ranks, std::span<const CheckpointPart> parts);
  void write(const Manifest& manifest, bool best, const std::string& complete);

  const Context& context_;
  const CheckpointOptions options_;
  const bool writes_main_;
  bool writes_weights_ = false;
  bool has_shards_ = false;    ///< parts of which each rank writes its own
  bool has_gathered_ = false;  ///< parts that are gathered from all ranks
  NamedTensors shared_;
  TensorImage of_rank_;  ///< what is gathered, this rank's
  TensorImage weights_;
  TensorImage state_;
  TensorImage shard_;
  CheckpointFolder main_folder_;
  CheckpointFolder shard_folder_;
  std::string complete_;     ///< the newest save that all ranks have completely
  std::int64_t latest_ = 0;  ///< time of the latest save, those found in the folder included
  std::string pending_;      ///< the one that is being written, or whose outcome is not exchanged
  std::int64_t step_ = 0;    ///< of `pending_`
  std::string failure_;      ///< of `pending_`, on this rank
  BackgroundTask task_;      // last: destroyed first
};

}  // namespace hora::internal
