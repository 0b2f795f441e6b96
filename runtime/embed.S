// Files as read-only data, by the assembler: a compiler takes a minute for what .incbin does in no time.
// EMBED_LIST names a list of TIDE_EMBED(symbol, name, path), which the C side reads too.

.macro blob symbol, path
  .hidden \symbol
  .globl \symbol
  .balign 16
\symbol:
  .incbin "\path"
.L\symbol\()_end:
  .byte 0
  .hidden \symbol\()_size
  .globl \symbol\()_size
  .balign 8
\symbol\()_size:
  .quad .L\symbol\()_end - \symbol
.endm

#define TIDE_EMBED(symbol, name, path) blob symbol, path

.section .rodata
#include EMBED_LIST

.section .note.GNU-stack, "", %progbits
