#include "core/launch/options/config_file.h"

#include <hora/printable.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <istream>
#include <map>
#include <optional>
#include <streambuf>

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

/// A key with its values, as they stand in the file.
struct Entry {
  std::string key;
  int line = 0;
  std::vector<std::string> values;
  bool is_list = false;
};

struct Refused {
  int line;
  std::string problem;
};

int line_of(const YAML::Mark& mark) {
  return mark.line + 1;
}

/// Takes the parser's events apart into entries; no document is kept, so none can expand. Throws
/// Refused at the first event that does not belong into such a file, before anything is nested
/// deeper.
class EntryReader : public YAML::EventHandler {
 public:
  std::vector<Entry> take() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) refuse(mark, "a second document begins; expected one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (place_ == Place::outside) return;  // an empty file
    if (place_ == Place::key) refuse(mark, "a key is empty");
    refuse(mark, "the value of " + in_quotes(entries_.back().key) + " is missing");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "anchors and aliases are not accepted");
  }
  void OnAnchor(const YAML::Mark& mark, const std::string&) override { OnAlias(mark, 0); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (anchor != 0) OnAlias(mark, anchor);
    check_tag(mark, tag);
    if (value.find('\0') != value.npos) refuse(mark, "a text holds a NUL byte");
    switch (place_) {
      case Place::outside:
      case Place::after:
        refuse(mark, "expected a map of flags to values, such as \"np: 4\"");
      case Place::key:
        entries_.push_back({value, line_of(mark), {}, false});
        place_ = Place::value;
        return;
      case Place::value:
        place_ = Place::key;
        [[fallthrough]];
      case Place::list:
        entries_.back().values.push_back(value);
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    if (anchor != 0) OnAlias(mark, anchor);
    check_tag(mark, tag);
    if (place_ != Place::value) refuse(mark, "a list does not belong here");
    entries_.back().is_list = true;
    place_ = Place::list;
  }
  void OnSequenceEnd() override { place_ = Place::key; }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    if (anchor != 0) OnAlias(mark, anchor);
    check_tag(mark, tag);
    if (place_ != Place::outside) {
      refuse(mark,
             "a map does not belong here: there are no sections, write the names of flags "
             "side by side");
    }
    place_ = Place::key;
  }
  void OnMapEnd() override { place_ = Place::after; }

 private:
  enum class Place { outside, key, value, list, after };

  [[noreturn]] static void refuse(const YAML::Mark& mark, std::string problem) {
    throw Refused{line_of(mark), std::move(problem)};
  }
  static void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tags are not accepted");
  }

  std::vector<Entry> entries_;
  Place place_ = Place::outside;
  int documents_ = 0;
};

/// Reads from a text without a copy.
class TextBuffer : public std::streambuf {
 public:
  explicit TextBuffer(std::string& text) {
    setg(text.data(), text.data(), text.data() + text.size());
  }
};

UsageError error_at(std::string_view path, int line, std::string problem, std::string advice = {}) {
  std::string place(path);
  if (line > 0) place += ":" + std::to_string(line);
  return {std::move(place), "", std::move(problem), std::move(advice)};
}

tl::expected<std::vector<Entry>, UsageError> read_entries(std::string_view text,
                                                          std::string_view path) {
  std::string copy(text);
  TextBuffer buffer(copy);
  std::istream stream(&buffer);
  EntryReader reader;
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(reader)) {
    }
  } catch (const Refused& refused) {
    return tl::unexpected(error_at(path, refused.line, refused.problem));
  } catch (const YAML::Exception& error) {
    return tl::unexpected(
        error_at(path, line_of(error.mark), "neither YAML nor JSON: " + error.msg));
  }
  return reader.take();
}

std::optional<bool> truth(std::string_view value) {
  for (const std::string_view yes : {"true", "True", "on", "On", "yes", "Yes"}) {
    if (value == yes) return true;
  }
  for (const std::string_view no : {"false", "False", "off", "Off", "no", "No"}) {
    if (value == no) return false;
  }
  return std::nullopt;
}

/// The values as the row takes them. The error is what was expected.
tl::expected<std::vector<std::string>, std::string> values_for(const OptionRow& row,
                                                               const Entry& entry) {
  if (entry.is_list && row.listing == Listing::none) return Unexpected("expected one value");
  if (entry.is_list && row.listing == Listing::commas) {
    std::string joined;
    for (const std::string& value : entry.values) joined += (joined.empty() ? "" : ",") + value;
    return std::vector{joined};
  }
  if (row.kind == OptionKind::flag) {
    const auto is_set = truth(entry.values.front());
    if (!is_set) return Unexpected("expected true or false");
    return *is_set ? std::vector<std::string>{""} : std::vector<std::string>{};
  }
  std::vector<std::string> values = entry.values;
  const bool is_switch =
      row.kind == OptionKind::toggle || std::ranges::count(row.choices, "on") > 0;
  for (std::string& value : values) {
    if (is_switch && truth(value)) value = *truth(value) ? "on" : "off";
    if (row.kind == OptionKind::pair && value.find(' ') == value.npos) {
      return Unexpected("expected a name and a value with a space between them");
    }
  }
  return values;
}

/// Which entry has said it before; both may stand where they add to each other.
bool says_the_same(const OptionRow& a, const OptionRow& b) {
  if (&a == &b) return true;
  return target_of(a) == target_of(b) && a.listing == Listing::none && b.listing == Listing::none;
}

}  // namespace

tl::expected<std::vector<Occurrence>, UsageError> parse_config(std::string_view text,
                                                               std::string_view path) {
  if (text.size() > kLargestConfigFile) {
    return tl::unexpected(
        error_at(path, 0, "is larger than " + std::to_string(kLargestConfigFile) + " bytes"));
  }
  const auto entries = read_entries(text, path);
  if (!entries) return tl::unexpected(entries.error());
  std::vector<Occurrence> occurrences;
  std::vector<std::pair<const OptionRow*, int>> seen;
  for (const Entry& entry : *entries) {
    const OptionRow* const row = find_option(entry.key);
    const std::string place =
        std::string(path) + ":" + std::to_string(entry.line) + ": " + entry.key;
    if (row == nullptr) {
      const std::string nearest = nearest_option(entry.key);
      return tl::unexpected(UsageError{place, "", "there is no flag of this name",
                                       nearest.empty() ? "" : "did you mean " + nearest + "?"});
    }
    if (row->standing == Standing::refused) return tl::unexpected(refusal(*row, place));
    if (row->on_command_line_only) {
      return tl::unexpected(UsageError{place, "", "belongs on the command line"});
    }
    const auto before = std::ranges::find_if(
        seen, [&](const auto& other) { return says_the_same(*other.first, *row); });
    if (before != seen.end()) {
      return tl::unexpected(UsageError{
          place, "",
          "line " + std::to_string(before->second) + " sets the same by " + before->first->name});
    }
    seen.emplace_back(row, entry.line);
    const auto values = values_for(*row, entry);
    if (!values) return tl::unexpected(UsageError{place, "", values.error()});
    for (const std::string& value : *values) occurrences.push_back({row, value, place});
  }
  return occurrences;
}

}  // namespace hora::launch
