// The extension module: Python's plain tuples and arrays to the executor's structs, and back.
// Not here: anything that computes. This is the only file that knows Python.
// Always true: the GIL is released while weights are packed and while a step runs; arrays were
// shape-checked here, and range-checked by the executor, before a kernel reads them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "ceilings.h"
#include "kernels.h"
#include "pack.h"
#include "program.h"
#include "step_queue.h"

namespace nb = nanobind;

namespace insitu {
namespace {

template <typename T, size_t Dims = 1>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Bytes = Array<const uint8_t>;

const KernelTable& table_named(const std::string& isa) {
  const KernelTable* table = kernel_table(isa.c_str());
  if (!table) throw std::invalid_argument("isa: this processor or build has no " + isa);
  return *table;
}

// (offset, stride, column, width, RowsOf, is_quantized)
TensorRef tensor_from(nb::handle h) {
  const auto [offset, stride, column, width, rows, is_quantized] =
      nb::cast<std::tuple<size_t, int, int, int, int, bool>>(h);
  if (rows < 0 || rows > static_cast<int>(RowsOf::Pooled)) throw std::invalid_argument("a tensor of unknown rows");
  return {offset, stride, column, width, static_cast<RowsOf>(rows), is_quantized};
}

OpKind kind_from(const std::string& name) {
  static constexpr const char* kNames[] = {"embed", "rms_norm",  "layer_norm", "quantize_rows", "linear",
                                           "rope_angles", "rope", "attention", "gated", "activate",
                                           "scale", "soft_cap", "add", "take", "route", "experts", "gate_rows"};
  for (size_t i = 0; i < std::size(kNames); i++)
    if (name == kNames[i]) return static_cast<OpKind>(i);
  throw std::invalid_argument("operator " + name + " is not known");
}

Activation activation_from(const std::string& name) {
  if (name == "silu") return Activation::Silu;
  if (name == "gelu") return Activation::Gelu;
  throw std::invalid_argument("activation " + name + " is not known");
}

// Each key's value, where there is one: key, value, key, value ...
template <typename T, typename... Rest>
void read(const nb::dict& op, const char* key, T& value, Rest&&... rest) {
  if (op.contains(key)) value = nb::cast<T>(op[key]);
  if constexpr (sizeof...(rest) > 0) read(op, rest...);
}

Operator operator_from(const nb::dict& dict) {
  Operator op{};
  op.kind = kind_from(nb::cast<std::string>(dict["kind"]));
  for (nb::handle input : nb::cast<nb::list>(dict["inputs"])) op.inputs.push_back(tensor_from(input));
  op.output = tensor_from(dict["output"]);
  read(dict, "linear", op.linear, "vector", op.vector, "groups", op.groups, "group", op.group);
  read(dict, "has_residual", op.has_residual, "is_gated", op.is_gated, "by_columns", op.by_columns);
  read(dict, "is_adjacent", op.is_adjacent, "is_positions", op.is_positions, "eps", op.eps, "scale", op.scale);
  read(dict, "theta", op.theta, "magnitude", op.magnitude, "divisors", op.divisors, "dim", op.dim);
  read(dict, "layer", op.layer, "num_heads", op.num_heads, "num_kv_heads", op.num_kv_heads, "head_dim", op.head_dim);
  read(dict, "window", op.window, "soft_cap", op.soft_cap);
  read(dict, "gate_up", op.gate_up, "down", op.down, "num_active", op.num_active, "is_normalised", op.is_normalised);
  if (dict.contains("activation")) op.activation = activation_from(nb::cast<std::string>(dict["activation"]));
  return op;
}

std::vector<float> floats_from(nb::handle h) {
  const auto array = nb::cast<Array<const float>>(h);
  return {array.data(), array.data() + array.size()};
}

// ([(block_type, n, k, data or None)], bias or None); `data` must outlive what is made of this.
RawLinear linear_from(nb::handle h) {
  const auto pair = nb::cast<nb::tuple>(h);
  RawLinear linear;
  for (nb::handle s : nb::cast<nb::list>(pair[0])) {
    const auto segment = nb::cast<nb::tuple>(s);
    RawSegment raw{static_cast<BlockType>(nb::cast<int>(segment[0])), nb::cast<int>(segment[1]),
                   nb::cast<int>(segment[2]), nullptr, 0};
    if (!segment[3].is_none()) {
      const auto data = nb::cast<Bytes>(segment[3]);
      raw.data = data.data();
      raw.num_bytes = data.size();
    }
    linear.segments.push_back(raw);
  }
  if (!pair[1].is_none()) linear.bias = floats_from(pair[1]);
  return linear;
}

ProgramSpec spec_from(const nb::dict& dict) {
  ProgramSpec spec;
  for (nb::handle op : nb::cast<nb::list>(dict["ops"])) spec.ops.push_back(operator_from(nb::cast<nb::dict>(op)));
  for (nb::handle linear : nb::cast<nb::list>(dict["linears"])) spec.linears.push_back(linear_from(linear));
  for (nb::handle vector : nb::cast<nb::list>(dict["vectors"])) spec.vectors.push_back(floats_from(vector));
  spec.logits = tensor_from(dict["logits"]);
  if (dict.contains("pooled")) spec.pooled = tensor_from(dict["pooled"]);
  spec.arena_bytes = nb::cast<size_t>(dict["arena_bytes"]);
  return spec;
}

// (num_layers, num_kv_heads, head_dim, block_size, dtype)
KvSpec kv_from(const std::tuple<int, int, int, int, std::string>& t) {
  static constexpr const char* kNames[] = {"f16", "f32", "bf16", "int8"};
  for (size_t i = 0; i < std::size(kNames); i++)
    if (std::get<4>(t) == kNames[i])
      return {std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t), static_cast<KvType>(i)};
  throw std::invalid_argument("kv: " + std::get<4>(t) + " is not a type of the KV cache");
}

// (max_num_tokens, max_num_logit_rows, max_num_seqs, num_blocks, max_blocks_per_seq)
Limits limits_from(const std::tuple<int, int, int, int, int>& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t), std::get<3>(t), std::get<4>(t)};
}

nb::dict sizes_to(const Sizes& sizes) {
  nb::dict dict;
  dict["packed_bytes"] = sizes.packed;
  dict["kv_bytes"] = sizes.kv;
  dict["arena_bytes"] = sizes.arena;
  dict["logits_bytes"] = sizes.logits;
  dict["scratch_bytes"] = sizes.scratch;
  return dict;
}

using KvTuple = std::tuple<int, int, int, int, std::string>;
using LimitsTuple = std::tuple<int, int, int, int, int>;
using Int32s = Array<const int32_t>;

int size_as_int(const Int32s& array) {
  if (array.size() > INT32_MAX) throw std::invalid_argument("an array has more than 2^31 - 1 entries");
  return static_cast<int>(array.size());
}

void require_size(const char* name, size_t size, size_t wanted) {
  if (size != wanted)
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(size) + " entries, not " +
                                std::to_string(wanted));
}

// One Executor that may be closed while Python still holds the object.
class Handle {
 public:
  Handle(const nb::dict& program, const KvTuple& kv, const LimitsTuple& limits, int num_threads,
         const std::string& isa, bool spin, bool pin) {
    const ProgramSpec spec = spec_from(program);
    const KernelTable& table = table_named(isa);
    ThreadOptions threads(num_threads);
    threads.spins = spin;
    threads.is_pinned = pin;
    nb::gil_scoped_release release;
    executor_ = std::make_unique<Executor>(spec, kv_from(kv), limits_from(limits), threads, table);
    vocab_size_ = executor_->vocab_size();
    pooled_width_ = executor_->pooled_width();
  }

  void close() {
    {
      nb::gil_scoped_release release;
      queue_.drain();
      const std::lock_guard lock(mutex_);
      executor_.reset();
    }
    given_.clear();
  }

  void fill(int linear, int segment, const Bytes& data) {
    const uint8_t* raw = data.data();
    const size_t num_bytes = data.size();
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    open().fill(linear, segment, raw, num_bytes);
  }

  // arrays: token_ids, positions, slot_mapping, block_table, query_start_loc, seq_lens, logit_rows, pooled_rows, pooled
  using BatchArrays =
      std::tuple<Int32s, Int32s, Int32s, Array<const int32_t, 2>, Int32s, Int32s, Int32s, Int32s, Array<float, 2>>;

  void forward(const BatchArrays& arrays, Array<float, 2> logits) {
    const Batch batch = batch_from(arrays);
    const size_t rows = logits.shape(0), columns = logits.shape(1);
    float* data = logits.data();
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    Executor& executor = open();
    require_size("logits", rows, batch.num_logit_rows);
    require_size("logits[0]", columns, executor.vocab_size());
    executor.forward(batch, data);
  }

  // sampling: what one number a row says, in the order of struct Sampling
  using SamplingArrays =
      std::tuple<Array<const double>, Int32s, Array<const double>, Array<const double>, Array<const double>,
                 Array<const double>, Array<const double>, Array<const double>, Int32s, Array<const uint64_t>,
                 Array<const uint32_t>, Array<const uint32_t>, Int32s, Int32s, Int32s>;
  // edits: row_start, token_id, count, value, before, repetition, presence, frequency
  using EditArrays = std::tuple<Int32s, Int32s, Int32s, Array<const double>, Array<float>, Array<const double>,
                                Array<const double>, Array<const double>>;
  // masks: of_row, bits
  using MaskArrays = std::tuple<Int32s, Array<const uint32_t, 2>>;
  // What a step is to choose by.
  using WantedArrays = std::tuple<SamplingArrays, EditArrays, MaskArrays>;
  // out: token_ids, logprobs, top_ids, top_logprobs, status
  using SampledArrays =
      std::tuple<Array<int32_t>, Array<float>, Array<int32_t, 2>, Array<float, 2>, Array<uint8_t>>;

  void step(const BatchArrays& arrays, const WantedArrays& wanted, const SampledArrays& out) {
    const Batch batch = batch_from(arrays);
    const Sampling s = sampling_from(wanted, batch.num_logit_rows);
    const Sampled sampled = sampled_from(out, batch.num_logit_rows);
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    Executor& executor = open();
    require_mask_words(wanted, executor.vocab_size());
    executor.step(batch, s, sampled);
  }

  void choose(const WantedArrays& wanted, const SampledArrays& out) {
    const size_t rows = std::get<0>(out).size();
    const Sampling s = sampling_from(wanted, rows);
    const Sampled sampled = sampled_from(out, rows);
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    Executor& executor = open();
    require_size("token_ids out", rows, executor.num_computed_rows());
    require_mask_words(wanted, executor.vocab_size());
    executor.choose(s, sampled);
  }

  // The same as a step that begins when those started before it have ended: its number, to be finished.
  uint64_t start(const BatchArrays& arrays, const WantedArrays& wanted, const SampledArrays& out) {
    const Batch batch = batch_from(arrays);
    const Sampling s = sampling_from(wanted, batch.num_logit_rows);
    const Sampled sampled = sampled_from(out, batch.num_logit_rows);
    require_mask_words(wanted, vocab_size_);  // without the lock, which the step that runs holds
    const uint64_t number = queue_.push([this, batch, s, sampled] {
      const std::lock_guard lock(mutex_);
      open().step(batch, s, sampled);
    });
    given_.emplace(number, Given{arrays, wanted, out});
    return number;
  }

  // The same without choosing: `choose` comes once it is finished, before anything else is started.
  uint64_t start_compute(const BatchArrays& arrays) {
    const Batch batch = batch_from(arrays);
    const uint64_t number = queue_.push([this, batch] {
      const std::lock_guard lock(mutex_);
      open().compute(batch);
    });
    given_.emplace(number, Given{arrays, {}, {}});
    return number;
  }

  void finish(uint64_t number) {
    const auto given = given_.extract(number);
    if (given.empty()) throw std::invalid_argument("finish: no such step was started");
    nb::gil_scoped_release release;
    queue_.wait(number);
  }

  int64_t busy_ns() const { return queue_.busy_ns(); }

  nb::dict sizes() { return sizes_to(open().sizes()); }

  // body(executor) without the GIL, between steps.
  template <typename Body>
  auto between_steps(Body&& body) {
    nb::gil_scoped_release release;
    queue_.drain();
    const std::lock_guard lock(mutex_);
    return body(open());
  }

  void start_profile() {
    between_steps([](Executor& e) { e.start_profile(); });
  }

  void stop_profile() {
    between_steps([](Executor& e) { e.stop_profile(); });
  }

  std::vector<int64_t> profile() {
    return between_steps([](Executor& e) { return e.profile_ns(); });
  }

  void copy_block(int source, int target) {
    between_steps([&](Executor& e) { e.copy_block(source, target); });
  }

  void wipe_block(int block) {
    between_steps([&](Executor& e) { e.wipe_block(block); });
  }

  nb::bytes packed(int linear, int segment) {
    size_t num_bytes = 0;
    const uint8_t* data = open().packed(linear, segment, &num_bytes);
    return nb::bytes(reinterpret_cast<const char*>(data), num_bytes);
  }

  static void require_mask_words(const WantedArrays& wanted, int vocab_size) {
    const auto& bits = std::get<1>(std::get<2>(wanted));
    if (bits.shape(0) > 0) require_size("masks.bits[0]", bits.shape(1), mask_words(vocab_size));
  }

  static Edits edits_from(const EditArrays& arrays, size_t rows) {
    const auto& [row_start, token_id, count, value, before, repetition, presence, frequency] = arrays;
    require_size("edits.row_start", row_start.size(), rows + 1);
    const size_t num_edits = std::max(row_start.data()[rows], 0);
    require_size("edits.token_id", token_id.size(), num_edits);
    require_size("edits.count", count.size(), num_edits);
    require_size("edits.value", value.size(), num_edits);
    require_size("edits.before", before.size(), num_edits);
    require_size("repetition", repetition.size(), rows);
    require_size("presence", presence.size(), rows);
    require_size("frequency", frequency.size(), rows);
    return {row_start.data(), token_id.data(),   count.data(),    value.data(),
            before.data(),    repetition.data(), presence.data(), frequency.data()};
  }

  static Masks masks_from(const MaskArrays& arrays, size_t rows) {
    const auto& [of_row, bits] = arrays;
    require_size("masks.of_row", of_row.size(), rows);
    return {of_row.data(), bits.data(), static_cast<int>(std::min<size_t>(bits.shape(0), INT32_MAX))};
  }

  static Sampling sampling_from(const WantedArrays& wanted, size_t rows) {
    const auto& [arrays, edits, masks] = wanted;
    return std::apply(
        [&](const auto&... columns) -> Sampling {
          (require_size("a column of sampling", columns.size(), rows), ...);
          return {columns.data()..., edits_from(edits, rows), masks_from(masks, rows)};
        },
        arrays);
  }

  static Sampled sampled_from(const SampledArrays& arrays, size_t rows) {
    const auto& [token_ids, logprobs, top_ids, top_logprobs, status] = arrays;
    require_size("token_ids out", token_ids.size(), rows);
    require_size("logprobs", logprobs.size(), rows);
    require_size("top_ids", top_ids.shape(0), rows);
    require_size("top_logprobs", top_logprobs.shape(0), rows);
    require_size("top_logprobs[0]", top_logprobs.shape(1), top_ids.shape(1));
    require_size("status", status.size(), rows);
    return {token_ids.data(),    logprobs.data(),
            top_ids.data(),      top_logprobs.data(),
            reinterpret_cast<RowStatus*>(status.data()), static_cast<int>(top_ids.shape(1))};
  }

 private:
  Executor& open() {
    if (!executor_) throw std::runtime_error("this engine is closed");
    return *executor_;
  }

  Batch batch_from(const BatchArrays& arrays) const {
    const auto& [token_ids, positions, slots, table, starts, lens, logit_rows, pooled_rows, pooled] = arrays;
    const size_t num_tokens = token_ids.size(), num_seqs = lens.size();
    require_size("positions", positions.size(), num_tokens);
    require_size("slot_mapping", slots.size(), num_tokens);
    require_size("block_table", table.shape(0), num_seqs);
    require_size("query_start_loc", starts.size(), num_seqs + 1);
    require_size("pooled", pooled.shape(0), pooled_rows.size());
    if (pooled_rows.size() > 0) require_size("pooled[0]", pooled.shape(1), pooled_width_);
    if (table.shape(1) > INT32_MAX) throw std::invalid_argument("block_table is too wide");
    return {size_as_int(token_ids), size_as_int(lens), size_as_int(logit_rows), static_cast<int>(table.shape(1)),
            token_ids.data(),       positions.data(),  slots.data(),            table.data(),
            starts.data(),          lens.data(),       logit_rows.data(),       size_as_int(pooled_rows),
            pooled_rows.data(),     pooled.data()};
  }

  // What a step that was started reads and writes: kept until it is finished, whoever lets go of it.
  struct Given {
    BatchArrays arrays;
    WantedArrays wanted;
    SampledArrays out;
  };

  std::mutex mutex_;
  std::unique_ptr<Executor> executor_;
  int vocab_size_ = 0, pooled_width_ = 0;
  std::map<uint64_t, Given> given_;
  StepQueue queue_;  // last: its thread ends before what it uses
};

// What ceilings.h measures, on the threads of an open executor.
class CeilingsHandle {
 public:
  CeilingsHandle(Handle& handle, size_t num_bytes)
      : handle_(handle),
        buffer_(handle.between_steps([&](Executor& e) { return ReadBuffer(e.pool(), num_bytes); })) {}

  double read_seconds(size_t first, size_t num_bytes) {
    return handle_.between_steps([&](Executor& e) { return buffer_.read_seconds(e.pool(), first, num_bytes); });
  }

  double peak_ops_per_second(const std::string& kind, double seconds) {
    if (kind != "int8" && kind != "float32") throw std::invalid_argument("kind: needs int8 or float32, not " + kind);
    const Peak peak = kind == "int8" ? Peak::Int8 : Peak::Float32;
    return handle_.between_steps(
        [&](Executor& e) { return insitu::peak_ops_per_second(e.pool(), e.table().name, peak, seconds); });
  }

 private:
  Handle& handle_;  // kept alive by Python
  ReadBuffer buffer_;
};

// Sampling alone, over logits that did not come from a program: what tests compare. Edits change them.
void sample(const std::string& isa, const Array<float, 2>& logits, const Handle::WantedArrays& wanted,
            const Handle::SampledArrays& out, int num_threads) {
  const int rows = static_cast<int>(logits.shape(0)), vocab_size = static_cast<int>(logits.shape(1));
  const Sampling s = Handle::sampling_from(wanted, rows);
  Handle::require_mask_words(wanted, vocab_size);
  const Sampled sampled = Handle::sampled_from(out, rows);
  check_sampling(s, rows, sampled.max_logprobs, vocab_size);
  const KernelTable& table = table_named(isa);
  float* data = logits.data();
  nb::gil_scoped_release release;
  const FloatControl control;
  ThreadPool pool(num_threads);
  const Mapping scratch(Sampler::scratch_bytes(vocab_size, rows, num_threads));
  Sampler(table, vocab_size, rows, num_threads, scratch.data()).run(pool, data, rows, s, sampled);
}

}  // namespace
}  // namespace insitu

NB_MODULE(_native, m) {
  using namespace insitu;
  m.attr("__doc__") = "The compiled kernels and their executor; kernels/native.py is its only caller.";
  m.def("has_isa", [](const std::string& isa) { return kernel_table(isa.c_str()) != nullptr; });
  m.def("quantized_bytes", [](const std::string& isa, int num_rows, int k, int group) {
    return table_named(isa).quantized_bytes(num_rows, k, group);
  });
  m.def("packed_block_bytes", [](int block_type, int k) {
    return packed_block_bytes(static_cast<BlockType>(block_type), k);
  });
  m.def("sizes", [](const nb::dict& program, const KvTuple& kv, const LimitsTuple& limits, int num_threads,
                    const std::string& isa) {
    return sizes_to(Executor::sizes(spec_from(program), kv_from(kv), limits_from(limits), num_threads, table_named(isa)));
  });
  nb::class_<Handle>(m, "Executor")
      .def(nb::init<const nb::dict&, const KvTuple&, const LimitsTuple&, int, const std::string&, bool, bool>())
      .def("close", &Handle::close)
      .def("fill", &Handle::fill)
      .def("forward", &Handle::forward)
      .def("step", &Handle::step)
      .def("choose", &Handle::choose)
      .def("start", &Handle::start)
      .def("start_compute", &Handle::start_compute)
      .def("finish", &Handle::finish)
      .def("busy_ns", &Handle::busy_ns)
      .def("sizes", &Handle::sizes)
      .def("start_profile", &Handle::start_profile)
      .def("stop_profile", &Handle::stop_profile)
      .def("profile", &Handle::profile)
      .def("copy_block", &Handle::copy_block)
      .def("wipe_block", &Handle::wipe_block)
      .def("ceilings", [](Handle& handle, size_t num_bytes) { return new CeilingsHandle(handle, num_bytes); },
           nb::keep_alive<0, 1>())
      .def("packed", &Handle::packed);
  nb::class_<CeilingsHandle>(m, "Ceilings")
      .def("read_seconds", &CeilingsHandle::read_seconds)
      .def("peak_ops_per_second", &CeilingsHandle::peak_ops_per_second);
  m.def("sample", &sample);
}
