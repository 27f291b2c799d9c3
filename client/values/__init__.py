"""Values of events decoded into columns, and encoded from columns, with Arrow. No I/O."""
