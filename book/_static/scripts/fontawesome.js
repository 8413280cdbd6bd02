// Takes the place of the theme's script of that name, 541 kB of which a page uses fifteen icons: see icons.css.
