#include "examples/vision/data/pickle_machine.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "examples/vision/data/pickle_numpy.h"
#include "examples/vision/data/pickle_opcodes.h"

namespace vision {
namespace {

using Kind = PickleKind;
using Object = PickleObject;
using Index = PickleIndex;

constexpr int oldest_protocol = 2;
constexpr int newest_protocol = 5;
constexpr std::size_t most_objects = 1'000'000;  // a file of CIFAR-10 has 20,000
constexpr std::size_t longest_name = 100;
constexpr std::size_t most_arguments = 10;

std::string printable(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return shown;
}

// The stack machine that a pickle is a program for.
class Machine {
 public:
  Machine(std::span<const std::uint8_t> bytes, const std::string& where)
      : bytes_(bytes), where_(where) {}

  PickleObjects run() {
    const auto start = read(2);
    if (start[0] != code_ || start[1] < oldest_protocol || start[1] > newest_protocol) {
      fail("is missing: a pickle of protocols 2 to 5 begins with it, byte 80, and the protocol");
    }
    do {
      at_ = next_;
      code_ = read(1)[0];
    } while (step(static_cast<Opcode>(code_)));
    if (stack_.size() != 1 || next_ != bytes_.size()) {
      fail("comes with " + std::to_string(stack_.size()) + " objects on the stack and " +
           std::to_string(bytes_.size() - next_) +
           " bytes behind it; expected one object, no byte");
    }
    return {std::move(objects_), stack_.front()};
  }

 private:
  // Of the opcode at at_.
  [[noreturn]] void fail(const std::string& what) const {
    std::array<char, 8> hexadecimal{};
    std::snprintf(hexadecimal.data(), hexadecimal.size(), "%02x", code_);
    throw std::runtime_error(where_ + ": pickle opcode " + std::string(opcode_name(code_)) + " (" +
                             hexadecimal.data() + ") at byte " + std::to_string(at_) + " " + what);
  }

  // --- Input ---
  std::span<const std::uint8_t> read(std::uint64_t count) {
    if (count > bytes_.size() - next_) {
      fail("needs " + std::to_string(count) + " bytes from byte " + std::to_string(next_) +
           " on; the pickle ends at byte " + std::to_string(bytes_.size()));
    }
    const auto part = bytes_.subspan(next_, static_cast<std::size_t>(count));
    next_ += part.size();
    return part;
  }
  std::uint64_t read_number(std::size_t bytes) {
    std::uint64_t number = 0;
    const auto part = read(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      number |= std::uint64_t{part[i]} << (8 * i);
    }
    return number;
  }
  std::string read_line() {
    std::string line;
    for (char c = 0; (c = static_cast<char>(read(1)[0])) != '\n'; line += c) {
      if (line.size() == longest_name) {
        fail("has a name of more than " + std::to_string(longest_name) + " characters");
      }
    }
    return line;
  }

  // --- Stack ---
  void push(Index object) {
    if (stack_.size() == most_objects) {
      fail("would put more than a million objects on the stack");
    }
    stack_.push_back(object);
  }
  Object& push(Kind kind, std::int64_t number = 0) {
    if (objects_.size() == most_objects) {
      fail("would make more than a million objects");
    }
    objects_.push_back({kind, number, {}, {}});
    push(static_cast<Index>(objects_.size() - 1));
    return objects_.back();
  }
  void push_text(std::uint64_t length) {
    const auto text = read(length);
    push(Kind::string).text = text;
  }
  Index pop() {
    if (stack_.empty()) {
      fail("finds the stack empty");
    }
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  std::vector<Index> pop_to_mark() {
    auto mark = stack_.size();
    while (mark > 0 && objects_[stack_[mark - 1]].kind != Kind::mark) {
      --mark;
    }
    if (mark == 0) {
      fail("finds no mark on the stack");
    }
    std::vector<Index> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  std::vector<Index> pop_count(std::size_t count) {
    std::vector<Index> items(count);
    for (std::size_t i = count; i > 0; --i) {
      items[i - 1] = pop();
    }
    return items;
  }
  // The object on top, which stays there.
  Object& top(Kind kind, const char* in_words) {
    if (stack_.empty() || objects_[stack_.back()].kind != kind) {
      fail(std::string("does not find ") + in_words + " on the stack");
    }
    return objects_[stack_.back()];
  }

  // --- Opcodes ---
  void add_items(const std::vector<Index>& items) {
    auto& list = top(Kind::list, "a list").items;
    list.insert(list.end(), items.begin(), items.end());
  }
  void add_pairs(const std::vector<Index>& items) {
    auto& dictionary = top(Kind::dictionary, "a dictionary").items;
    if (items.size() % 2 != 0) {
      fail("finds a key without a value");
    }
    dictionary.insert(dictionary.end(), items.begin(), items.end());
  }
  void make_tuple(std::vector<Index> items) { push(Kind::tuple).items = std::move(items); }

  void put(std::uint64_t name) {
    const Index object = pop();
    if (memo_.size() == most_objects) {
      fail("would keep more than a million objects");
    }
    memo_[name] = object;
    stack_.push_back(object);
  }
  void get(std::uint64_t name) {
    const auto found = memo_.find(name);
    if (found == memo_.end()) {
      fail("asks for object " + std::to_string(name) + ", which was not kept");
    }
    push(found->second);
  }

  std::vector<const Object*> at(const std::vector<Index>& items) const {
    std::vector<const Object*> objects;
    for (const Index item : items) {
      objects.push_back(&objects_[item]);
    }
    return objects;
  }
  void global(std::string_view module, std::string_view name) {
    const std::optional<Kind> kind = numpy_name(module, name);
    if (!kind) {
      fail("asks for " + printable(module) + "." + printable(name) +
           ", which is refused: only what an array of numpy's uint8 needs is known here, and no "
           "code is ever run");
    }
    push(*kind);
  }
  void global_by_lines() {
    const std::string module = read_line();
    global(module, read_line());
  }
  void global_by_stack() {
    const std::string_view name = pop_string();
    global(pop_string(), name);
  }
  // The text of a name, which the machine need not keep.
  std::string_view pop_string() {
    const Object& object = objects_[pop()];
    if (object.kind != Kind::string || object.text.size() > longest_name) {
      fail("does not find two names of up to " + std::to_string(longest_name) +
           " characters on the stack");
    }
    return {reinterpret_cast<const char*>(object.text.data()), object.text.size()};
  }

  void reduce() {
    const Object& arguments = top(Kind::tuple, "a tuple of arguments");
    std::optional<Object> made;
    if (stack_.size() >= 2 && arguments.items.size() <= most_arguments) {
      made = call_numpy(objects_[stack_[stack_.size() - 2]].kind, at(arguments.items));
    }
    if (!made) {
      fail("makes something other than an array of uint8");
    }
    pop_count(2);
    push(made->kind) = std::move(*made);
  }
  void build() {
    const Object& state = top(Kind::tuple, "a tuple with the state");
    if (stack_.size() < 2 || state.items.size() > most_arguments ||
        !set_numpy_state(objects_[stack_[stack_.size() - 2]], at(state.items))) {
      fail("gives an object a state that no array of uint8 has");
    }
    pop();
  }

  // False after the last one.
  bool step(Opcode code) {
    switch (code) {
      case Opcode::stop:
        return false;
      case Opcode::mark:
        push(Kind::mark);
        break;
      case Opcode::none:
        push(Kind::none);
        break;
      case Opcode::newtrue:
        push(Kind::boolean, 1);
        break;
      case Opcode::newfalse:
        push(Kind::boolean, 0);
        break;
      case Opcode::binint1:
        push(Kind::integer, static_cast<std::int64_t>(read_number(1)));
        break;
      case Opcode::binint2:
        push(Kind::integer, static_cast<std::int64_t>(read_number(2)));
        break;
      case Opcode::binint:
        push(Kind::integer, static_cast<std::int32_t>(static_cast<std::uint32_t>(read_number(4))));
        break;
      case Opcode::short_binstring:
      case Opcode::short_binbytes:
      case Opcode::short_binunicode:
        push_text(read_number(1));
        break;
      case Opcode::binstring:
      case Opcode::binbytes:
      case Opcode::binunicode:
        push_text(read_number(4));
        break;
      case Opcode::binbytes8:
      case Opcode::binunicode8:
      case Opcode::bytearray8:
        push_text(read_number(8));
        break;
      case Opcode::frame:
        // The opcodes in a frame are read as they come; its length says nothing more.
        read_number(8);
        break;
      case Opcode::empty_tuple:
        make_tuple({});
        break;
      case Opcode::tuple:
        make_tuple(pop_to_mark());
        break;
      case Opcode::tuple1:
        make_tuple(pop_count(1));
        break;
      case Opcode::tuple2:
        make_tuple(pop_count(2));
        break;
      case Opcode::tuple3:
        make_tuple(pop_count(3));
        break;
      case Opcode::empty_list:
        push(Kind::list);
        break;
      case Opcode::append:
        add_items(pop_count(1));
        break;
      case Opcode::appends:
        add_items(pop_to_mark());
        break;
      case Opcode::empty_dict:
        push(Kind::dictionary);
        break;
      case Opcode::setitem:
        add_pairs(pop_count(2));
        break;
      case Opcode::setitems:
        add_pairs(pop_to_mark());
        break;
      case Opcode::binput:
        put(read_number(1));
        break;
      case Opcode::long_binput:
        put(read_number(4));
        break;
      case Opcode::memoize:
        put(memo_.size());
        break;
      case Opcode::binget:
        get(read_number(1));
        break;
      case Opcode::long_binget:
        get(read_number(4));
        break;
      case Opcode::global:
        global_by_lines();
        break;
      case Opcode::stack_global:
        global_by_stack();
        break;
      case Opcode::reduce:
        reduce();
        break;
      case Opcode::build:
        build();
        break;
      default:
        fail("is refused: files of CIFAR-10 do not hold it");
    }
    return true;
  }

  std::span<const std::uint8_t> bytes_;
  const std::string& where_;
  std::size_t next_ = 0;  // byte to be read
  std::size_t at_ = 0;    // byte of the opcode at work
  std::uint8_t code_ = static_cast<std::uint8_t>(Opcode::proto);
  std::vector<Object> objects_;
  std::vector<Index> stack_;
  std::unordered_map<std::uint64_t, Index> memo_;
};

}  // namespace

PickleObjects run_pickle(std::span<const std::uint8_t> bytes, const std::string& where) {
  return Machine(bytes, where).run();
}

}  // namespace vision
