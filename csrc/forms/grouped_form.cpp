#include "forms/grouped_form.hpp"

#include <string>

namespace gg {

const char* words_of(GroupedForm form) {
  constexpr const char* words[] = {
      "ragged rows (a 2-D mat_a and a 3-D mat_b)", "ragged columns (a 3-D mat_a and a 2-D mat_b)",
      "ragged K (a 2-D mat_a and a 2-D mat_b)", "stacks of matrices (a 3-D mat_a and a 3-D mat_b)"};
  return words[static_cast<int>(form)];
}

std::string words_of(GroupedForms forms) {
  std::string text;
  for (const GroupedForm form :
       {GroupedForm::ragged_m, GroupedForm::ragged_n, GroupedForm::ragged_k, GroupedForm::stack}) {
    if (forms & bit_of(form)) text += (text.empty() ? "" : " and ") + std::string(words_of(form));
  }
  return text;
}

}  // namespace gg
