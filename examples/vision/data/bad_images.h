/// What a loader does with images that cannot be decoded.
#pragma once

namespace vision {

enum class BadImages {
  raise,  ///< next() throws the BadImage
  /// The sample becomes the next good image of the list, from its start after its end, so that
  /// batches and steps stay as many as on the other ranks. Batch::replaced() has those samples.
  skip,
};

}  // namespace vision
