#include "ops/nccl/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/base/log.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

using std::chrono::microseconds;

constexpr std::chrono::nanoseconds kSpin = microseconds(100);
constexpr std::chrono::nanoseconds kLongestPause = microseconds(1000);
constexpr int kShare = 8;

/// NCCL_WIN_COLL_SYMMETRIC, which headers before 2.27 lack.
constexpr int kSymmetric = 1;

template <class Member>
bool all_alike(std::span<const Location> places, Member member) {
  return std::ranges::all_of(
      places, [&](const Location& place) { return place.*member == places.front().*member; });
}

constexpr std::size_t kBlockElements = 4096;

bool is_reduction(const Unit& unit) {
  return unit.kind == OperationKind::allreduce || unit.kind == OperationKind::reduce_scatter;
}

}  // namespace

std::chrono::nanoseconds pause_between_looks(std::chrono::nanoseconds waited) {
  if (waited < kSpin) return std::chrono::nanoseconds(0);
  return std::min(waited / kShare, kLongestPause);
}

NcclCommunicator::NcclCommunicator(const NcclFunctions& functions, const ncclUniqueId& id,
                                   int ranks, int rank, int most_ctas)
    : functions_(&functions), comm_(std::make_shared<ncclComm_t>(nullptr)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (most_ctas > 0) config.maxCTAs = most_ctas;
  const ncclResult_t result =
      functions.comm_init_rank_config(comm_.get(), ranks, id, rank, &config);
  or_abort([&] { nccl_check(functions, result, "ncclCommInitRankConfig", *comm_); });
}

/// Aborts where it throws.
template <class F>
void NcclCommunicator::or_abort(const F& call) {
  try {
    call();
  } catch (...) {
    abort();
    throw;
  }
}

NcclCommunicator& NcclCommunicator::operator=(NcclCommunicator&& other) noexcept {
  if (this != &other) {
    abort();
    functions_ = other.functions_;
    comm_ = std::move(other.comm_);
  }
  return *this;
}

NcclCommunicator::~NcclCommunicator() {
  abort();
}

ncclResult_t NcclCommunicator::state() const {
  if (get() == nullptr) {
    throw Error(ErrorCode::invalid_use, "this NCCL communicator was closed or aborted");
  }
  ncclResult_t state = ncclSuccess;
  nccl_check(*functions_, functions_->comm_get_async_error(*comm_, &state), "ncclCommGetAsyncError",
             *comm_);
  nccl_check(*functions_, state, background_, *comm_);
  return state;
}

bool NcclCommunicator::ready() const {
  return state() != ncclInProgress;
}

void NcclCommunicator::check_async() const {
  state();
}

void NcclCommunicator::wait_ready(Deadline deadline) const {
  wait_until([this] { return ready(); }, deadline);
}

void NcclCommunicator::abort() noexcept {
  if (get() != nullptr) {
    nccl_check_release(*functions_, functions_->comm_abort(std::exchange(*comm_, nullptr)),
                       "ncclCommAbort");
  }
}

void NcclCommunicator::begin_close() {
  if (get() == nullptr) return;
  or_abort([&] {
    nccl_check(*functions_, functions_->comm_finalize(*comm_), "ncclCommFinalize", *comm_);
  });
}

bool NcclCommunicator::closed() {
  if (get() == nullptr) return true;
  bool is_ready = false;
  or_abort([&] { is_ready = ready(); });
  if (!is_ready) return false;
  nccl_check(*functions_, functions_->comm_destroy(std::exchange(*comm_, nullptr)),
             "ncclCommDestroy");
  return true;
}

void NcclCommunicator::close(Deadline deadline) {
  if (get() == nullptr) return;
  or_abort([&] {
    wait_ready(deadline);
    begin_close();
    wait_until([this] { return closed(); }, deadline);
  });
}

RegisteredMemory::RegisteredMemory(const NcclFunctions& functions,
                                   const NcclCommunicator& communicator, std::size_t bytes)
    : functions_(&functions), comm_(communicator.comm_), bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const ncclResult_t result = functions.mem_alloc(&data, bytes);
  if (result != ncclSuccess) {
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("ncclMemAlloc of {} bytes failed: {} ({}). Where the GPU has memory "
                    "left, try NCCL_CUMEM_ENABLE=0",
                    bytes, functions.get_error_string(result), functions.get_last_error(nullptr)));
  }
  data_ = static_cast<std::byte*>(data);
  if (communicator.get() != nullptr) {
    const ncclResult_t registration =
        functions.comm_register(communicator.get(), data, bytes, &handle_);
    if (registration != ncclSuccess) {
      handle_ = nullptr;
      nccl_check_release(functions, registration, "ncclCommRegister");
    }
  }
}

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : functions_(other.functions_),
      comm_(std::move(other.comm_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      handle_(std::exchange(other.handle_, nullptr)),
      window_(std::exchange(other.window_, nullptr)) {}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  if (this != &other) {
    release();
    functions_ = other.functions_;
    comm_ = std::move(other.comm_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    handle_ = std::exchange(other.handle_, nullptr);
    window_ = std::exchange(other.window_, nullptr);
  }
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  release();
}

void RegisteredMemory::become_window() {
  nccl_check(*functions_,
             functions_->comm_window_register(*comm_, data_, bytes_, &window_, kSymmetric),
             "ncclCommWindowRegister (HORA_NCCL_WINDOWS)", *comm_);
}

void RegisteredMemory::deregister() noexcept {
  void* const window = std::exchange(window_, nullptr);
  void* const handle = std::exchange(handle_, nullptr);
  // A communicator that is gone has dropped its registrations.
  if (!comm_ || *comm_ == nullptr) return;
  if (window != nullptr) {
    nccl_check_release(*functions_, functions_->comm_window_deregister(*comm_, window),
                       "ncclCommWindowDeregister");
  }
  if (handle != nullptr) {
    nccl_check_release(*functions_, functions_->comm_deregister(*comm_, handle),
                       "ncclCommDeregister");
  }
}

void RegisteredMemory::release() noexcept {
  if (data_ == nullptr) return;
  deregister();
  nccl_check_release(*functions_, functions_->mem_free(std::exchange(data_, nullptr)),
                     "ncclMemFree");
}

void NcclCommunicators::check_async() const {
  for (const NcclCommunicator& each : open_) {
    if (each.get() != nullptr) each.check_async();
  }
}

void NcclCommunicators::abort() noexcept {
  for (NcclCommunicator& each : open_) each.abort();
  for (NcclCommunicator& each : closing_) each.abort();
}

void NcclCommunicators::retire(NcclCommunicator& communicator) {
  if (communicator.get() == nullptr) return;
  closing_.push_back(std::move(communicator));
  closing_.back().begin_close();
}

bool NcclCommunicators::advance() {
  std::erase_if(closing_, [](NcclCommunicator& each) { return each.closed(); });
  return !closing_.empty();
}

void NcclCommunicators::close(NcclCommunicator::Deadline deadline) {
  // All of them begin before any is waited for.
  for (NcclCommunicator& each : open_) {
    if (each.get() == nullptr) continue;
    each.wait_ready(deadline);
    retire(each);
  }
  wait_until([this] { return !advance(); }, deadline);
}

WindowAgreement agreement_of(std::span<const Location> places) {
  if (places.empty() || !all_alike(places, &Location::window)) return {};
  const Location& any = places.front();
  if (any.window == kNoWindow || any.window == kNowhere.window) return {};
  const bool same = all_alike(places, &Location::offset);
  if (any.window == kProposedWindow) return {.begins = same};
  return {.is_shared = true, .ends = same ? static_cast<std::uint32_t>(any.offset) : kNoWindow};
}

void NcclBuffers::add(RegisteredMemory memory) {
  const std::byte* const data = memory.data();
  if (data == nullptr) return;
  const LockGuard lock(mutex_);
  buffers_.emplace(data, Buffer{.memory = std::move(memory)});
}

std::optional<RegisteredMemory> NcclBuffers::give_back(std::byte* data) {
  const LockGuard lock(mutex_);
  auto node = buffers_.extract(data);
  Buffer& buffer = node.mapped();
  if (buffer.window == kNoWindow) return std::move(buffer.memory);
  given_back_.emplace(buffer.window, std::move(buffer.memory));
  return std::nullopt;
}

/// The buffer that the memory lies in.
NcclBuffers::Buffer* NcclBuffers::find(const std::byte* data) {
  const auto found = buffers_.lower_bound(data);  // the last one that begins at or before it
  if (data == nullptr || found == buffers_.end()) return nullptr;
  const auto offset = static_cast<std::size_t>(data - found->first);
  return offset < found->second.memory.bytes() ? &found->second : nullptr;
}

Location NcclBuffers::place(const std::byte* data) {
  if (!enabled_ || data == nullptr) return {};
  const LockGuard lock(mutex_);
  const auto found = buffers_.find(data);
  if (found == buffers_.end()) return {};
  Buffer& buffer = found->second;
  if (buffer.window != kNoWindow) {
    const std::uint32_t first = given_back_.empty() ? kNoWindow : given_back_.begin()->first;
    return {.window = buffer.window, .offset = first};
  }
  if (std::exchange(buffer.is_proposed, true)) return {};
  return {.window = kProposedWindow, .offset = buffer.memory.bytes()};
}

WindowPlan NcclBuffers::plan(const BoundUnit& unit, int local_rank) {
  WindowPlan plan;
  if (!enabled_) return plan;
  const auto ranks = static_cast<std::size_t>(unit.local_size);
  const auto places_of = [&](std::size_t position) {
    return std::span(unit.places).subspan(position * ranks, ranks);
  };
  const LockGuard lock(mutex_);
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const auto places = places_of(i);
    const WindowAgreement agreed = agreement_of(places);
    if (agreed.begins) ++last_window_;
    const bool proposes = places[static_cast<std::size_t>(local_rank)].window == kProposedWindow;
    if (Buffer* const own = proposes ? find(unit.tensor(i, local_rank)) : nullptr) {
      own->is_proposed = false;
      if (agreed.begins) {
        own->window = last_window_;
        plan.begins.push_back(&own->memory);
      }
    }
    if (auto ended = given_back_.extract(agreed.ends)) {
      plan.ends.push_back(agreed.ends);
      ending_.insert(std::move(ended));
    }
  }
  // When all windows of the unit are known.
  for (std::size_t i = 0; i < unit.unit.tensors.size(); ++i) {
    const WindowAgreement agreed = agreement_of(places_of(i));
    if (agreed.begins || agreed.is_shared) {
      plan.shared.resize(unit.unit.tensors.size());
      plan.shared[i] = true;
      continue;
    }
    const Buffer* const own = find(unit.tensor(i, local_rank));
    if (own == nullptr || own->window == kNoWindow) continue;
    plan.apart.resize(unit.unit.tensors.size());
    plan.apart[i] = true;
  }
  return plan;
}

void NcclBuffers::carry_out(const WindowPlan& plan, const NcclFunctions& nccl) {
  for (const std::uint32_t window : plan.ends) ending_.erase(window);  // and frees it
  if (plan.begins.empty()) return;
  NcclCallGroup calls(nccl);
  for (RegisteredMemory* const memory : plan.begins) memory->become_window();
  calls.end();
}

bool NcclBuffers::in_window(const std::byte* data) {
  if (!enabled_) return false;
  const LockGuard lock(mutex_);
  const Buffer* const buffer = find(data);
  return buffer != nullptr && buffer->window != kNoWindow;
}

bool NcclBuffers::has_windows() {
  const LockGuard lock(mutex_);
  return !given_back_.empty() || std::ranges::any_of(buffers_, [](const auto& entry) {
    return entry.second.window != kNoWindow;
  });
}

void NcclBuffers::end_windows() noexcept {
  enabled_ = false;
  const LockGuard lock(mutex_);
  given_back_.clear();
  for (auto& [data, buffer] : buffers_) {
    if (std::exchange(buffer.window, kNoWindow) != kNoWindow) buffer.memory.deregister();
  }
}

bool NcclBuffers::empty() {
  const LockGuard lock(mutex_);
  return buffers_.empty() && given_back_.empty() && ending_.empty();
}

void NcclBuffers::free_all() noexcept {
  const LockGuard lock(mutex_);
  buffers_.clear();
  given_back_.clear();
  ending_.clear();
}

void NcclBuffers::leave_in_place() noexcept {
  const LockGuard lock(mutex_);
  for (auto& [data, buffer] : buffers_) buffer.memory.leave_in_place();
  for (auto& [window, memory] : given_back_) memory.leave_in_place();
  for (auto& [window, memory] : ending_) memory.leave_in_place();
}

const std::byte* IdentityElements::block(DataType type, ReduceOp op) {
  auto& block = blocks_[{type, op}];
  if (block) return block.get();
  std::vector<std::byte> values(kBlockElements * size_of(type));
  fill_identity(type, op, values.data(), kBlockElements);
  // A stream of its own: on the other one the copy would wait for collectives.
  const CudaStream stream(cuda_, kUrgentPriority);
  block = allocate_owned(heap_, values.size(), stream.get());
  heap_.to_device(block.get(), values.data(), values.size(), stream.get());
  return block.get();
}

void IdentityElements::fill(DataType type, ReduceOp op, std::byte* target, std::size_t count) {
  const std::byte* const source = block(type, op);
  std::vector<CopyPiece> pieces;
  for (std::size_t first = 0; first < count; first += kBlockElements) {
    const std::size_t elements = std::min(kBlockElements, count - first);
    pieces.push_back({source, target + first * size_of(type), static_cast<std::int64_t>(elements)});
  }
  if (pieces.empty()) return;
  const BatchedCopy copy{.pieces = pieces, .source_type = type, .target_type = type};
  cuda_check(cuda_, cuda_.batched_copy(copy, stream_.get()), "the kernel batched_copy");
}

ncclDataType_t to_nccl(DataType type) {
  switch (type) {
    case DataType::float16:
      return ncclFloat16;
    case DataType::bfloat16:
      return ncclBfloat16;
    case DataType::float32:
      return ncclFloat32;
    case DataType::float64:
      return ncclFloat64;
    case DataType::int32:
      return ncclInt32;
    case DataType::int64:
      return ncclInt64;
    case DataType::uint8:
    case DataType::boolean:
      return ncclUint8;
    case DataType::int8:
      return ncclInt8;
    case DataType::uint32:
      return ncclUint32;
    case DataType::uint64:
      return ncclUint64;
    case DataType::int16:
    case DataType::uint16:
      throw Error(ErrorCode::invalid_argument,
                  "NCCL has no type for " + std::string(name_of(type)) +
                      ": convert the tensor to int32, or move it to the CPU");
  }
  throw Error(ErrorCode::invalid_argument,
              "unknown data type " + std::to_string(static_cast<int>(type)));
}

ncclDataType_t travelling_type(DataType type) {
  const bool of_16_bits = type == DataType::int16 || type == DataType::uint16;
  return of_16_bits ? ncclFloat16 : to_nccl(type);
}

ncclRedOp_t to_nccl(ReduceOp op, DataType type) {
  const bool of_truth = type == DataType::boolean;
  switch (op) {
    case ReduceOp::average:
      return ncclAvg;
    case ReduceOp::sum:
      return of_truth ? ncclMax : ncclSum;
    case ReduceOp::product:
      return of_truth ? ncclMin : ncclProd;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::adasum:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              "NCCL has no " + std::string(name_of(op)) + ": move the tensor to the CPU");
}

bool sums_scaled_in_windows(const Unit& unit) {
  return unit.kind == OperationKind::allreduce && unit.op == ReduceOp::average &&
         is_floating_point(unit.type) && unit.type != DataType::float64;
}

bool needs_preparation(const Unit& unit) {
  return is_reduction(unit) && (unit.type == DataType::boolean || unit.prescale != 1.0);
}

BatchedCopy preparation(const Unit& unit) {
  BatchedCopy copy{.pieces = {}, .source_type = unit.type, .target_type = unit.type};
  if (!is_reduction(unit)) return copy;
  if (unit.type == DataType::boolean) copy.source_type = DataType::uint8;
  copy.scale = unit.prescale;
  return copy;
}

namespace {

std::string describe(const NcclFunctions& functions, ncclResult_t result, std::string_view call,
                     ncclComm_t comm) {
  const char* text = functions.get_error_string(result);
  const char* last = comm != nullptr ? functions.get_last_error(comm) : nullptr;
  const bool has_last = last != nullptr && *last != '\0';
  return fmt::format("{} failed: {} (error {}){}{}", call, text != nullptr ? text : "unknown error",
                     static_cast<int>(result), has_last ? "; NCCL's last error: " : "",
                     has_last ? last : "");
}

}  // namespace

void throw_nccl_error(const NcclFunctions& functions, ncclResult_t result, std::string_view call,
                      ncclComm_t comm) {
  const std::string text = describe(functions, result, call, comm);
  if (result == ncclRemoteError) throw PeerFailure(ErrorCode::transport, text);
  throw Error(ErrorCode::transport, text);
}

void nccl_check_release(const NcclFunctions& functions, ncclResult_t result,
                        std::string_view call) noexcept {
  if (result == ncclSuccess || result == ncclInProgress) return;
  try {
    log().debug(describe(functions, result, call, nullptr));
  } catch (...) {
    // Without memory for its text the failure is not reported.
  }
}

}  // namespace hora::internal
