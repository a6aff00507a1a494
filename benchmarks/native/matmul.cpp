// What a matmul reaches of this machine: GB/s against reading the same bytes, GOPS against the integer peak.
// Every round reads as many bytes raw, multiplies, and runs the register loop, so that all three saw the same
// machine; with one thread in its own processor time. Printed are medians over rounds of the two ratios, and the best absolute figure.
// Build and run: benchmarks/native/run matmul --types Q4_0,Q4_1 --rows 1,8,512 --shape 8960x1536
#include <cmath>
#include <cstdio>

#include "kernels.h"
#include "measure.h"
#include "pack.h"

using namespace insitu;

namespace {

struct Named { BlockType type; const char* name; int group; };
constexpr double kPeakSeconds = 0.002;  // of a round
constexpr Named kTypes[] = {{BlockType::Q4_0, "Q4_0", 32},  {BlockType::Q4_1, "Q4_1", 32},  {BlockType::Q5_0, "Q5_0", 32},
                            {BlockType::Q8_0, "Q8_0", 32},  {BlockType::Q4_K, "Q4_K", 256}, {BlockType::Q6_K, "Q6_K", 256},
                            {BlockType::F16, "F16", 0},     {BlockType::BF16, "BF16", 0},   {BlockType::F32, "F32", 0}};

struct Options {
  std::string types = "Q4_0,Q4_1,Q8_0,Q4_K,Q6_K", rows = "1,2,4,8,16,32,512", isa;
  int n = 8960, k = 1536, threads = 2, rounds = 9;
  int shifted = 0;  // of a thousand groups of 32 inputs of a row
  size_t cold_mb = 64;
};

// Weights of one type, in as many copies as make reading them a matter of memory, not of cache.
struct Matrix {
  const Named& type;
  int n, k;
  size_t block_bytes, num_blocks, copies;
  Buffer data;
  Matrix(const Named& t, int n, int k, size_t cold_bytes)
      : type(t), n(n), k(k), block_bytes(packed_block_bytes(t.type, k)), num_blocks((n + 31) / 32),
        copies(std::max<size_t>(1, cold_bytes / (block_bytes * num_blocks))), data(block_bytes * num_blocks * copies) {
    const std::vector<uint8_t> raw = random_blocks(block_row_bytes(t.type, k) * 32);
    pack_block(t.type, raw.data(), 32, k, 0, data.at(0));
    for (size_t b = 1; b < num_blocks * copies; b++) std::memcpy(data.at(b * block_bytes), data.at(0), block_bytes);
  }
  size_t bytes() const { return block_bytes * num_blocks; }
};

void measure(const Options& o, const KernelTable& table, ThreadPool& pool, const ReadBuffer& other, const Matrix& w,
             int rows) {
  const int group = w.type.group;
  Buffer x(size_t{4} * rows * w.k), y(size_t{4} * rows * w.n), q(table.quantized_bytes(rows, w.k, group ? group : 32));
  fill_floats(x, size_t(rows) * w.k);
  for (size_t i = 0; i < size_t(rows) * w.k; i += 32)
    if (static_cast<int>(random_word() % 1000) < o.shifted)
      for (int j = 0; j < 32; j++) x.floats()[i + j] = 8 * std::fabs(x.floats()[i + j]);
  if (group)
    for (int row = 0; row < rows; row++)
      table.quantize_row(x.floats() + size_t(row) * w.k, rows, w.k, group, row, q.at(0));
  const Activations a{rows, w.k, group, group ? nullptr : x.floats(), w.k, group ? q.at(0) : nullptr};
  const size_t copies = rows > 64 ? 1 : w.copies;
  const auto multiply = [&](int part, int parts) {
    for (size_t c = 0; c < copies; c++) {
      const PackedSegment s{w.type.type, w.n, w.k, w.data.at(c * w.bytes()), w.block_bytes};
      for (size_t b = w.num_blocks * part / parts; b < w.num_blocks * (part + 1) / parts; b++)
        table.matmul_block(s, int(b), a, Epilogue{}, y.floats(), w.n);
    }
    table.end_matmul();
  };
  const Clock clock(pool.num_threads());
  std::vector<double> gbps, gops, of_read, of_peak, peaks, reads;
  for (int round = 0; round < o.rounds; round++) {
    const double raw = read_seconds(pool, clock, other, round, w.bytes() * w.copies), took = seconds(pool, clock, multiply);
    gbps.push_back(1e-9 * w.bytes() * copies / took);
    gops.push_back(2e-9 * rows * w.n * double(w.k) * copies / took);
    reads.push_back(1e-9 * w.bytes() * w.copies / raw);
    peaks.push_back(1e-9 * peak_ops_per_second(pool, table.name, Peak::Int8, kPeakSeconds));
    of_read.push_back(gbps.back() / reads.back());
    of_peak.push_back(gops.back() / peaks.back());
  }
  std::printf("%-5s M=%-4d %6.1f GB/s %4.2f of read (best of each %4.2f)  %6.0f GOPS %4.2f of peak (best of each %4.2f)\n", w.type.name, rows,
              most(gbps), median(of_read), most(gbps) / most(reads), most(gops), median(of_peak), most(gops) / most(peaks));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i], value = argv[i + 1];
    if (key == "--types") o.types = value;
    else if (key == "--rows") o.rows = value;
    else if (key == "--isa") o.isa = value;
    else if (key == "--threads") o.threads = std::stoi(value);
    else if (key == "--rounds") o.rounds = std::stoi(value);
    else if (key == "--shifted") o.shifted = std::stoi(value);
    else if (key == "--cold-mb") o.cold_mb = std::stoul(value);
    else if (key == "--shape") o.n = std::stoi(value), o.k = std::stoi(value.substr(value.find('x') + 1));
    else return std::fprintf(stderr, "matmul: no option %s\n", key.c_str()), 2;
  }
  const KernelTable* table = best_table(o.isa.c_str());
  if (!table) return std::fprintf(stderr, "matmul: %s cannot run here\n", o.isa.c_str()), 2;
  ThreadPool pool(o.threads);
  std::printf("%s, %d x %d, %d threads, %d rounds\n", table->name, o.n, o.k, o.threads, o.rounds);
  for (const std::string& name : split(o.types))
    for (const Named& type : kTypes) {
      if (name != type.name) continue;
      const Matrix w(type, o.n, o.k, o.cold_mb << 20);
      const ReadBuffer other(pool, std::max(size_t{256} << 20, 2 * w.bytes() * w.copies));
      for (const std::string& rows : split(o.rows)) measure(o, *table, pool, other, w, std::stoi(rows));
    }
}
