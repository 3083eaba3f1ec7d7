LISTEN {channel}_ready;
LISTEN {channel}_due;
LISTEN {channel}_pause;
