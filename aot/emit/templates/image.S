
    .balign $alignment
    .globl $label
    .hidden $label
    .type $label, %object
    .size $label, $bytes
$label:
    .incbin "$path"
