"""What a module defines and few runs use, made when it is first used. Anybody may import it; it imports nobody."""
