#include <hora/printable.h>

#include <algorithm>
#include <tuple>

#include "core/base/text.h"
#include "core/negotiation/overdue_names.h"

namespace hora::internal {
namespace {

constexpr std::size_t kValuesShown = 8;

template <class Field>
bool differs(const Report& report, Field&& field) {
  return std::any_of(report.values.begin(), report.values.end(),
                     [&](const ReportedSignature& value) {
                       return field(value.signature) != field(report.values.front().signature);
                     });
}

std::string what_differs(const Report& report) {
  std::string text;
  const auto add = [&](bool different, const char* word) {
    if (different) text += (text.empty() ? "" : ", ") + std::string(word);
  };
  add(differs(report, [](const Signature& s) { return s.kind; }), "operation");
  add(differs(report, [](const Signature& s) { return s.type; }), "type");
  add(differs(report, [](const Signature& s) { return s.shape.size(); }), "number of dimensions");
  add(differs(report, [](const Signature& s) { return s.shape; }), "shape");
  add(differs(report, [](const Signature& s) { return s.op; }), "reduction");
  add(differs(report, [](const Signature& s) { return s.prescale; }), "prescale");
  add(differs(report, [](const Signature& s) { return s.postscale; }), "postscale");
  add(differs(report, [](const Signature& s) { return s.root; }), "root");
  add(differs(report, [](const Signature& s) { return s.device; }), "device");
  return text;
}

}  // namespace

std::string mismatch_text(const Report& report) {
  const auto joined = std::find_if(
      report.values.begin(), report.values.end(),
      [](const ReportedSignature& v) { return v.signature.kind == OperationKind::join; });
  if (joined != report.values.end()) {
    const auto other = joined == report.values.begin() ? joined + 1 : report.values.begin();
    return tensor_text(report.name) + ": " + ranks_have(joined->ranks) +
           " called join() and nothing more to bring: only an allreduce goes on then, and " +
           named_ranks(other->ranks) + " submitted " + to_string(other->signature);
  }
  std::string text =
      tensor_text(report.name) + ": ranks disagree about its " + what_differs(report) + ": ";
  const std::size_t shown = std::min(report.values.size(), kValuesShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const ReportedSignature& value = report.values[i];
    text += (i == 0 ? "" : "; ") + named_ranks(value.ranks) + ": " + to_string(value.signature);
  }
  if (shown < report.values.size()) {
    text += "; and " + std::to_string(report.values.size() - shown) + " other values";
  }
  return text + ". Submit the same operation, type, shape, reduction and root under one name.";
}

namespace {

constexpr std::size_t kNamesShown = 3;
constexpr std::size_t kGroupsShown = 4;
constexpr std::size_t kRemarksShown = 4;

/// Tensors that the same ranks wait for.
using OverdueGroup = std::vector<const OverdueTensor*>;

bool alike(const OverdueTensor& a, const OverdueTensor& b) {
  return std::tie(a.ready, a.missing, a.silent, a.elsewhere) ==
         std::tie(b.ready, b.missing, b.silent, b.elsewhere);
}

std::vector<OverdueGroup> grouped(std::span<const OverdueTensor> tensors) {
  std::vector<OverdueGroup> groups;
  for (const OverdueTensor& tensor : tensors) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const OverdueGroup& group) {
      return alike(*group.front(), tensor);
    });
    if (same == groups.end()) {
      groups.push_back({&tensor});
    } else {
      same->push_back(&tensor);
    }
  }
  return groups;
}

std::string names_text(const OverdueGroup& group) {
  if (group.size() == 1) return tensor_text(group.front()->name);
  std::string text = "tensors ";
  const std::size_t shown = std::min(group.size(), kNamesShown);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + in_quotes(group[i]->name);
  if (shown < group.size()) text += " and " + std::to_string(group.size() - shown) + " more";
  return text;
}

std::string group_text(ProcessSet set, const OverdueGroup& group) {
  const OverdueTensor& tensor = *group.front();
  const bool one = group.size() == 1;
  std::string text = names_text(group);
  if (set != kWorld) text += " of process set " + to_string(set);
  text += std::string(one ? " is" : " are") + " waited for by ranks " + ranks_text(tensor.ready) +
          (one ? " and has" : " and have") + " not been submitted";
  if (!tensor.missing.empty()) text += " by ranks " + ranks_text(tensor.missing);
  if (!tensor.silent.empty()) {
    text += std::string(tensor.missing.empty() ? "" : ",") + " by ranks " +
            ranks_text(tensor.silent) + " (nothing heard from their nodes about it)";
  }
  for (const auto& [other, ranks] : tensor.elsewhere) {
    text += "; ranks " + ranks_text(ranks) + " wait under " + (one ? "this name" : "these names") +
            " on process set " + to_string(other) + ": is it meant to be one tensor, on one set?";
  }
  return text;
}

}  // namespace

std::string overdue_text(ProcessSet set, std::span<const OverdueTensor> tensors,
                         const std::map<int, std::string>& remarks) {
  const std::vector<OverdueGroup> groups = grouped(tensors);
  const std::size_t shown = std::min(groups.size(), kGroupsShown);
  std::string text;
  std::size_t left = tensors.size();
  for (std::size_t i = 0; i < shown; ++i) {
    text += (i == 0 ? "" : "; ") + group_text(set, groups[i]);
    left -= groups[i].size();
  }
  if (left > 0) text += "; and " + std::to_string(left) + " more tensors wait for other ranks";
  text += ". Do all ranks call the same collectives? Is one of them slow, stopped or gone?";
  std::size_t said = 0;
  for (const auto& [rank, remark] : remarks) {
    if (said == kRemarksShown) {
      return text + "; and " + std::to_string(remarks.size() - said) + " more ranks";
    }
    text += (said++ == 0 ? " " : "; ") + remark;
  }
  return text;
}

}  // namespace hora::internal
