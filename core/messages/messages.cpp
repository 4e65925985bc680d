#include "core/messages/messages.h"

#include <flatbuffers/flatbuffers.h>
#include <fmt/format.h>
#include <hora/printable.h>

#include <bit>
#include <cmath>
#include <set>

#include "core/control_block/node_control_block.h"
#include "messages_generated.h"

namespace hora::internal {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;

/// Deep enough for every message; a hostile buffer cannot make the verifier recurse further.
constexpr int kMaxDepth = 8;
/// A table's first field, the offset of its layout.
constexpr std::size_t kLeastTableBytes = 4;

auto encode_signature(Builder& builder, const Signature& s) {
  return wire::CreateSignatureDirect(
      builder, static_cast<std::uint8_t>(s.kind), static_cast<std::uint8_t>(s.type),
      static_cast<std::uint8_t>(s.op), static_cast<std::uint8_t>(s.device), s.root, &s.shape,
      s.prescale, s.postscale);
}

wire::Expiry encode_expiry(const Expiry& expiry) {
  return {static_cast<std::uint64_t>(expiry.limit.count()),
          static_cast<std::uint32_t>(expiry.left.count()), expiry.is_of_call};
}

flatbuffers::Offset<void> encode_body(Builder& builder, const Mail& mail) {
  const wire::Expiry expiry = encode_expiry(mail.expiry);
  return wire::CreateMailDirect(builder, static_cast<std::uint8_t>(mail.kind), mail.name.c_str(),
                                encode_signature(builder, mail.signature), mail.location.window,
                                mail.location.offset,
                                mail.kind == MailKind::expiring ? &expiry : nullptr)
      .Union();
}

flatbuffers::Offset<void> encode_body(Builder& builder, const Up& up) {
  std::vector<flatbuffers::Offset<wire::Report>> reports;
  for (const Report& report : up.reports) {
    std::vector<flatbuffers::Offset<wire::ReportedSignature>> values;
    for (const ReportedSignature& value : report.values) {
      const auto signature = encode_signature(builder, value.signature);
      values.push_back(wire::CreateReportedSignatureDirect(builder, signature, &value.ranks));
    }
    reports.push_back(wire::CreateReportDirect(builder, report.name.c_str(), &values));
  }
  std::vector<flatbuffers::Offset<wire::Presence>> presence;
  for (const Presence& p : up.presence) {
    std::vector<flatbuffers::Offset<flatbuffers::String>> remarks;
    for (const std::string& remark : p.remarks) remarks.push_back(builder.CreateString(remark));
    presence.push_back(wire::CreatePresenceDirect(builder, p.name.c_str(), &p.ready, &p.missing,
                                                  &remarks, p.is_answer));
  }
  std::vector<flatbuffers::Offset<wire::Expiring>> expiring;
  for (const Expiring& e : up.expiring) {
    const wire::Expiry expiry = encode_expiry(e.expiry);
    expiring.push_back(wire::CreateExpiringDirect(builder, e.name.c_str(), e.rank, &expiry));
  }
  std::vector<std::int32_t> last_ranks;
  std::vector<std::int64_t> last_late;
  for (const LastArrival& last : up.last) {
    last_ranks.push_back(last.rank);
    last_late.push_back(last.late.count());
  }
  return wire::CreateUpDirect(
             builder, &up.ready, &reports, &presence, &up.departed, &up.joined,
             up.last.empty() ? nullptr : &last_ranks, up.last.empty() ? nullptr : &last_late,
             up.expiring.empty() ? nullptr : &expiring, up.resized.empty() ? nullptr : &up.resized,
             up.disputed.empty() ? nullptr : &up.disputed)
      .Union();
}

flatbuffers::Offset<void> encode_body(Builder& builder, const Decision& decision) {
  std::vector<flatbuffers::Offset<wire::Assigned>> assigned;
  for (const Assigned& a : decision.assigned) {
    std::vector<std::uint32_t> windows;
    std::vector<std::uint64_t> offsets;
    flatbuffers::Offset<wire::Signature> signature;
    if (a.signature) signature = encode_signature(builder, *a.signature);
    for (const Location& location : a.locations) {
      windows.push_back(location.window);
      offsets.push_back(location.offset);
    }
    assigned.push_back(
        wire::CreateAssignedDirect(builder, a.name.c_str(), a.id, &windows, &offsets, signature));
  }
  std::vector<flatbuffers::Offset<wire::Failed>> failed;
  for (const Failed& f : decision.failed) {
    failed.push_back(wire::CreateFailedDirect(builder, f.name.c_str(), f.text.c_str()));
  }
  std::vector<flatbuffers::Offset<flatbuffers::String>> asked;
  for (const std::string& name : decision.asked) asked.push_back(builder.CreateString(name));
  return wire::CreateDecisionDirect(builder, &decision.retired, &assigned, &failed, &decision.run,
                                    &decision.departed, decision.finished, decision.all_joined,
                                    decision.last_joined, &asked,
                                    decision.resized.empty() ? nullptr : &decision.resized)
      .Union();
}

flatbuffers::Offset<void> encode_body(Builder& builder, const JobEnd& end) {
  return wire::CreateJobEndDirect(builder, static_cast<std::uint8_t>(end.code), end.rank,
                                  end.text.c_str(), end.tensor.c_str())
      .Union();
}

constexpr std::size_t kMaxDimensions = 64;

/// Reads verified tables; remembers the first error that verification does not detect, and the
/// first value beyond the limits, where there are any. Nothing that encode() makes shares its
/// parts, so a message that says more than it has bytes is refused: a few kilobytes of offsets to
/// one vector could mean terabytes.
class Decoder {
 public:
  Decoder(std::size_t message_bytes, const MessageLimits* limits)
      : bytes_left_(message_bytes), limits_(limits) {}

  const std::string& problem() const { return problem_; }

  Mail mail(const wire::Mail& m) {
    return {.kind = enumerator<MailKind>(m.kind(), "mail kind"),
            .name = to_text(m.name()),
            .signature = signature(m.signature()),
            .location = {.window = m.window(), .reserved = 0, .offset = m.offset()},
            .expiry = m.kind() == static_cast<std::uint8_t>(MailKind::expiring) ? expiry(m.expiry())
                                                                                : Expiry{}};
  }

  Up up(const wire::Up& u) {
    Up result{.ready = ids(u.ready()),
              .departed = ranks(u.departed()),
              .joined = ranks(u.joined()),
              .resized = ids(u.resized()),
              .disputed = ids(u.disputed())};
    for (const wire::Report* r : items(u.reports())) {
      Report report{.name = to_text(r->name()), .values = {}};
      for (const wire::ReportedSignature* v : items(r->values())) {
        report.values.push_back({signature(v->signature()), ranks(v->ranks())});
      }
      if (report.values.empty()) fail("report of {} holds no value", in_quotes(report.name));
      result.reports.push_back(std::move(report));
    }
    for (const wire::Presence* p : items(u.presence())) {
      Presence& presence = result.presence.emplace_back(
          Presence{to_text(p->name()), ranks(p->ready()), ranks(p->missing())});
      for (const flatbuffers::String* remark : items(p->remarks())) {
        presence.remarks.push_back(to_text(remark));
      }
      presence.is_answer = p->is_answer();
      if (limits_ && !presence.remarks.empty() &&
          presence.remarks.size() != presence.missing.size()) {
        fail("{} remarks on {} ranks", presence.remarks.size(), presence.missing.size());
      }
    }
    for (const wire::Expiring* e : items(u.expiring())) {
      result.expiring.push_back({to_text(e->name()), rank(e->rank()), expiry(e->expiry())});
    }
    const auto last_ranks = to_vector(u.last_ranks());
    const auto last_late = to_vector(u.last_late());
    if (last_ranks.size() != last_late.size()) fail("last ranks without their times");
    for (std::size_t i = 0; i < std::min(last_ranks.size(), last_late.size()); ++i) {
      const int last = last_ranks[i] == -1 ? -1 : rank(last_ranks[i]);
      if (limits_ && last_late[i] < 0) fail("a rank that is late by {} ns", last_late[i]);
      result.last.push_back({last, {}, LastArrival::Time(last_late[i])});
    }
    if (limits_ && !result.last.empty() && result.last.size() != result.ready.size()) {
      fail("{} last ranks of {} ids", result.last.size(), result.ready.size());
    }
    return result;
  }

  Decision decision(const wire::Decision& d) {
    Decision result{.retired = ids(d.retired()),
                    .run = ids(d.run()),
                    .resized = ids(d.resized()),
                    .departed = ranks(d.departed()),
                    .finished = d.finished(),
                    .all_joined = d.all_joined(),
                    .last_joined = d.all_joined() ? rank(d.last_joined()) : d.last_joined()};
    std::set<std::string> names;
    std::set<int> slots;
    for (const wire::Assigned* a : items(d.assigned())) {
      Assigned assigned{.name = to_text(a->name()), .id = id(a->id()), .locations = {}};
      const auto windows = to_vector(a->windows());
      const auto offsets = to_vector(a->offsets());
      if (windows.size() != offsets.size())
        fail("locations of {} are torn", in_quotes(assigned.name));
      for (std::size_t i = 0; i < std::min(windows.size(), offsets.size()); ++i) {
        assigned.locations.push_back({windows[i], 0, offsets[i]});
      }
      if (a->signature()) assigned.signature = signature(a->signature());
      if (limits_ && assigned.locations.size() != limits_->locations) {
        fail("{} locations of {}, not {}", assigned.locations.size(), in_quotes(assigned.name),
             limits_->locations);
      }
      if (limits_ && !names.insert(assigned.name).second) {
        fail("two ids for {}", in_quotes(assigned.name));
      }
      if (limits_ && !slots.insert(slot_of(assigned.id)).second) {
        fail("id {} for two names", assigned.id);
      }
      result.assigned.push_back(std::move(assigned));
    }
    for (const wire::Failed* f : items(d.failed())) {
      result.failed.push_back({to_text(f->name()), to_text(f->text())});
    }
    for (const flatbuffers::String* name : items(d.asked())) result.asked.push_back(to_text(name));
    return result;
  }

  JobEnd job_end(const wire::JobEnd& e) {
    return {.code = enumerator<ErrorCode>(e.code(), "error code"),
            .rank = e.rank() == -1 ? -1 : rank(e.rank()),
            .text = to_text(e.text()),
            .tensor = to_text(e.tensor())};
  }

 private:
  template <class T>
  using Tables = flatbuffers::Vector<flatbuffers::Offset<T>>;

  Id id(Id id) {
    if (limits_ && slot_of(id) >= limits_->id_capacity) {
      fail("id {}, of slot {} of {}", id, slot_of(id), limits_->id_capacity);
    }
    return id;
  }
  std::vector<Id> ids(const flatbuffers::Vector<Id>* values) {
    std::vector<Id> result = to_vector(values);
    for (const Id each : result) id(each);
    return result;
  }
  int rank(int rank) {
    if (limits_ && !std::ranges::binary_search(limits_->ranks, rank)) {
      fail("rank {}, which is not in the process set", rank);
    }
    return rank;
  }
  std::vector<int> ranks(const flatbuffers::Vector<std::int32_t>* values) {
    std::vector<int> result = to_vector(values);
    for (const int each : result) rank(each);
    return result;
  }

  Signature signature(const wire::Signature* s) {
    if (!s) return {};
    Signature result{.kind = enumerator<OperationKind>(s->kind(), "kind"),
                     .type = enumerator<DataType>(s->type(), "type"),
                     .op = enumerator<ReduceOp>(s->op(), "op"),
                     .device = enumerator<DeviceKind>(s->device(), "device"),
                     .root = s->root(),
                     .shape = to_vector(s->shape()),
                     .prescale = finite(s->prescale(), "prescale"),
                     .postscale = finite(s->postscale(), "postscale")};
    if (limits_) check(result);
    return result;
  }

  /// That a user can submit it.
  void check(const Signature& signature) {
    if (signature.kind == OperationKind::broadcast) rank(signature.root);
    if (signature.kind == OperationKind::add_process_set) {
      for (const std::int64_t each : signature.shape) {
        if (!std::in_range<int>(each)) return fail("a set with rank {}", each);
        rank(static_cast<int>(each));
      }
      return;
    }
    Shape shape = signature.shape;
    const bool differs = extents_may_differ(signature.kind);
    if (differs && (shape.empty() || shape.front() != kAnyExtent)) {
      return fail("an exchange whose first extent is given");
    }
    if (signature.kind == OperationKind::reduce_scatter && shape.empty()) {
      return fail("a scalar to scatter");
    }
    if (signature.kind == OperationKind::remove_process_set && shape.size() != 1) {
      return fail("a removal of no process set");
    }
    if (differs) shape.front() = 1;
    if (shape.size() > kMaxDimensions) return fail("{} dimensions", shape.size());
    try {
      elements_of(signature.type, shape);
    } catch (const Error& error) {
      fail("{}", error.what());
    }
  }

  Expiry expiry(const wire::Expiry* e) {
    if (!e) return {};
    if (!std::in_range<std::chrono::milliseconds::rep>(e->limit())) {
      fail("a time limit of {} ms", e->limit());
      return {};
    }
    if (e->left() > Expiry::kMostLeft.count()) fail("a tensor that expires in {} ms", e->left());
    return {std::chrono::milliseconds(e->limit()), std::chrono::milliseconds(e->left()),
            e->is_of_call()};
  }

  template <class T>
  std::vector<const T*> items(const Tables<T>* tables) {
    if (!tables || !charge(tables->size() * kLeastTableBytes)) return {};
    return {tables->begin(), tables->end()};
  }

  template <class T>
  std::vector<T> to_vector(const flatbuffers::Vector<T>* values) {
    if (!values || !charge(values->size() * sizeof(T))) return {};
    // Copied as bytes: the verifier does not see to the alignment of a vector's 8-byte elements.
    static_assert(std::endian::native == std::endian::little, "FlatBuffers' byte order");
    std::vector<T> result(values->size());
    if (!result.empty()) std::memcpy(result.data(), values->Data(), result.size() * sizeof(T));
    return result;
  }

  std::string to_text(const flatbuffers::String* text) {
    if (!text || !charge(text->size())) return {};
    std::string result = text->str();
    if (result.find('\0') != std::string::npos) fail("a name or text with a zero byte");
    return result;
  }

  bool charge(std::size_t bytes) {
    if (bytes > bytes_left_) {
      fail("a message says more than it has bytes: its parts share memory");
      bytes_left_ = 0;
      return false;
    }
    bytes_left_ -= bytes;
    return true;
  }

  template <class E>
  E enumerator(std::uint8_t value, const char* what) {
    if (is_enumerator(static_cast<E>(value))) return static_cast<E>(value);
    fail("unknown {} {}", what, value);
    return E{};
  }

  /// NaN is not equal to itself, so ranks could not agree on it.
  double finite(double value, const char* what) {
    if (!std::isfinite(value)) fail("{} is no finite number", what);
    return value;
  }

  template <class... Values>
  void fail(fmt::format_string<Values...> text, Values&&... values) {
    if (problem_.empty()) problem_ = fmt::format(text, std::forward<Values>(values)...);
  }

  std::size_t bytes_left_;
  const MessageLimits* limits_;  ///< null: none
  std::string problem_;
};

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Builder builder;
  // The alternatives of Message are those of wire::Body, whose first one is none.
  const auto type = static_cast<wire::Body>(message.index() + 1);
  const auto body = std::visit([&](const auto& m) { return encode_body(builder, m); }, message);
  builder.Finish(wire::CreateMessage(builder, type, body));
  const auto* bytes = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {bytes, bytes + builder.GetSize()};
}

tl::expected<Message, std::string> decode(std::span<const std::byte> bytes,
                                          const MessageLimits* limits) {
  flatbuffers::Verifier verifier(
      reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), kMaxDepth,
      static_cast<flatbuffers::uoffset_t>(bytes.size() / kLeastTableBytes));
  if (!wire::VerifyMessageBuffer(verifier)) {
    return tl::unexpected(fmt::format("not a hora message ({} bytes)", bytes.size()));
  }
  const wire::Message* message = wire::GetMessage(bytes.data());
  Decoder decoder(bytes.size(), limits);
  Message result;
  if (const wire::Mail* mail = message->body_as_Mail()) {
    result = decoder.mail(*mail);
  } else if (const wire::Up* up = message->body_as_Up()) {
    result = decoder.up(*up);
  } else if (const wire::Decision* decision = message->body_as_Decision()) {
    result = decoder.decision(*decision);
  } else if (const wire::JobEnd* end = message->body_as_JobEnd()) {
    result = decoder.job_end(*end);
  } else {
    return tl::unexpected(std::string("a hora message of unknown kind"));
  }
  if (!decoder.problem().empty()) return tl::unexpected(decoder.problem());
  return result;
}

MessageLimits message_limits(const Topology& topology, int id_capacity, std::size_t locations) {
  return {id_capacity, topology.ranks(), locations};
}

}  // namespace hora::internal
