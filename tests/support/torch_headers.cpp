// Its precompiled headers are what is wanted of it.
int main() {}
