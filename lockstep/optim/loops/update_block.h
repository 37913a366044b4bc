// The update of one block of one variable: the summed gradient in, new weights and slots out, in one pass over memory.
#pragma once

#include <cstdint>

namespace lockstep::internal::inline optim {

/// The arithmetic of an update. Each is LibTorch's torch::optim rule of the same options.
enum class UpdateKind {
  kSgd,                      // no slots
  kSgdMomentum,              // momentum_buffer
  kSgdNesterov,              // momentum_buffer
  kAdam,                     // exp_avg, exp_avg_sq
  kAdamAmsgrad,              // exp_avg, exp_avg_sq, max_exp_avg_sq
  kAdamW,                    // exp_avg, exp_avg_sq
  kAdamWAmsgrad,             // exp_avg, exp_avg_sq, max_exp_avg_sq
  kRmsprop,                  // square_avg
  kRmspropMomentum,          // square_avg, momentum_buffer
  kRmspropCentered,          // square_avg, grad_avg
  kRmspropCenteredMomentum,  // square_avg, grad_avg, momentum_buffer
  kAdagrad,                  // sum
  kOwn,                      // of a rule of the program's own; no loop here has it
};

inline constexpr int kMaxSlots = 3;

/// How many columns a sum of squares has. Column j has the elements j, j + kSquareColumns, ... of what is given to one
/// call, at most kSumBlock of them. Their squares are added one after another, beginning with 0, in the elements' type.
/// Then the columns are added in double: column j + 32 to column j for all j < 32; of these 32 column j + 16 to column
/// j, and so on, until one is left. So the sum is a function of the elements alone, and many may add it side by side.
inline constexpr int kSquareColumns = 64;

/// The numbers of one update of one variable. The formulas in update_rules.inc show which of them a kind reads.
struct Coefficients {
  double learning_rate = 0;  // the factor of the whole step; Adam's is divided by its first bias correction
  double weight_decay = 0;   // times the weights, added to the gradient; for AdamW the factor of the weights
  double keep_first = 0;     // the old value's factor in the first running average, or in the momentum buffer
  double take_first = 0;     // the gradient's factor there
  double keep_second = 0;    // the old value's factor in the running average of squares
  double take_second = 0;    // the square's factor there
  double momentum = 0;       // the buffer's factor (Nesterov, RMSprop)
  double root_scale = 0;     // the square root's factor (Adam's second bias correction)
  double epsilon = 0;
  double step = 0;  // how often the variable was updated, this update included: for rules of the program's own
};

/// The input and the output of one block. Each pointer is to `count` elements of the kernel's type. New values go to
/// where the old ones are, or to other memory that overlaps none of the inputs.
struct BlockUpdate {
  const void* weights;
  const void* slots[kMaxSlots];
  void* new_weights;
  void* new_slots[kMaxSlots];
  const void* gradient;        // the sum over replicas, or its left half
  const void* right_gradient;  // the right half, or null
  int64_t count;
  const Coefficients* coefficients;
  double clip;  // the gradient's factor

  uint64_t checksum_read;     // of the weights as found
  uint64_t checksum_written;  // of the weights as left
  double sum_of_squares;      // of the gradient, before `clip`
};

/// Updates a block: writes `new_weights`, `new_slots`, both checksums and `sum_of_squares`.
using UpdateBlock = void (*)(BlockUpdate& block);
/// Computes `sum_of_squares` alone; reads `gradient`, `right_gradient` and `count`.
using MeasureBlock = void (*)(BlockUpdate& block);

/// The loops for this processor; T is float or double.
template <class T>
UpdateBlock update_block(UpdateKind kind);
template <class T>
MeasureBlock measure_block();

}  // namespace lockstep::internal::optim
