// One anonymous mapping: zero-filled, 2 MB aligned, committed page by page on first use. Huge pages are
// asked for wherever a whole one fits: what is committed never exceeds the size by a page of 4 KB.
// Not here: what is placed in it. Used for packed weights, the KV pool, activations and scratch.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace insitu {

class Mapping {
 public:
  Mapping() = default;
  explicit Mapping(size_t size) : size_(size) {
    if (size == 0) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    mapped_ = size + kHugePage;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    const auto start = (reinterpret_cast<uintptr_t>(base_) + kHugePage - 1) & ~(kHugePage - 1);
    data_ = reinterpret_cast<uint8_t*>(start);
#ifdef MADV_HUGEPAGE
    if (size >= kHugePage) madvise(data_, size & ~(kHugePage - 1), MADV_HUGEPAGE);  // refusal is fine
#endif
  }
  ~Mapping() {
    if (base_) munmap(base_, mapped_);
  }
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // From here on a write is a crash, not a changed weight.
  void make_read_only() {
    if (data_) mprotect(data_, (size_ + 4095) & ~size_t{4095}, PROT_READ);
  }

 private:
  static constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  void swap(Mapping& other) {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  void* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0, size_ = 0;
};

constexpr size_t kAlignment = 64;
inline size_t align_up(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace insitu
